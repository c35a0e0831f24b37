// The theme's arrows that unfold a chapter have no name, which a screen reader could say.
document.addEventListener("DOMContentLoaded", () => {
  for (const summary of document.querySelectorAll(".bd-sidebar-primary details > summary")) {
    const link = summary.closest("li").querySelector("a");
    summary.setAttribute("aria-label", `Pages of ${link.textContent.trim()}`);
  }
});
