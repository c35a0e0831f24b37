// The system's colours, before anything is drawn: a reader in the dark sees no white flash.
document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
