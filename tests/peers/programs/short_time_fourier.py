"""The short-time Fourier transform: what is refused, what warns, and signals that come back."""

import warnings


def refusals(torch, note):
    x = torch.linspace(-1, 1, 20)
    z = torch.stft(x, 8, window=torch.ones(8), return_complex=True)
    w = torch.ones(8)
    for call, phrase in (
        (lambda: torch.stft(x, 8, window=w), "requires the return_complex parameter be given for real inputs"),
        (lambda: torch.stft(x.long(), 8, window=w, return_complex=True, center=False), "floating point or complex"),
        (lambda: torch.stft(x.view(1, 4, 5), 2, window=w[:2], return_complex=True), "expected a 1D or 2D tensor"),
        (lambda: torch.stft(x, 21, window=w, center=False, return_complex=True), "but got n_fft=21"),
        (lambda: torch.stft(x, 8, 0, window=w, return_complex=True), "expected hop_length > 0, but got hop_length=0"),
        (lambda: torch.stft(x, 8, 2, 9, w, return_complex=True), "expected 0 < win_length <= n_fft"),
        (lambda: torch.stft(x, 8, 2, 7, w, return_complex=True), "1D window tensor of size equal to win_length=7"),
        (lambda: torch.stft(x + 0j, 8, 2, window=w, onesided=True), "Cannot have onesided output if window or input"),
        (
            lambda: torch.stft(x, 8, window=w, return_complex=True, align_to_window=True),
            "align_to_window should only be set when center = false",
        ),
        (lambda: torch.istft(torch.view_as_real(z), 8, window=w), "istft requires a complex-valued input tensor"),
        (lambda: torch.istft(z[:, :0], 8, window=w), "input tensor cannot be empty"),
        (
            lambda: torch.istft(z[:4], 8, window=w, onesided=True),
            "match n_fft / 2 + 1 when onesided=True, but got 4",
        ),
        (lambda: torch.istft(z, 8, window=w, onesided=False), "to match n_fft when onesided=False, but got 5"),
        (lambda: torch.istft(z, 8, 9, window=w), "expected 0 < hop_length <= win_length"),
        (lambda: torch.istft(z, 8, 2, 4, w), ""),
        (lambda: torch.istft(z, 8, window=0 * w), "window overlap add min"),
        (lambda: torch.istft(z, 8, window=w, return_complex=True), "Cannot have onesided output"),
        (lambda: torch.istft(z, 8, window=w + 0j), "Complex windows are incompatible with return_complex=False"),
    ):
        note.error(phrase, call, phrase)


def warning_of_no_window_and_of_padding(torch, note):
    x = torch.linspace(-1, 1, 20, dtype=torch.float64)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        z = torch.stft(x, 8, return_complex=True)
        note("no window", z)
        back = torch.istft(z, 8, window=torch.ones(8, dtype=x.dtype), length=26)
        note("longer", back)
    said = " ".join(str(w.message) for w in caught)
    note("warnings", ["A window was not provided" in said, "shorter than the length parameter" in said])


def a_signal_comes_back(torch, note):
    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 160).cos().view(2, 80)
    for options in ({"hop_length": 4}, {"hop_length": 3, "win_length": 12}, {"normalized": True}):
        window = torch.hann_window(options.get("win_length", 16))
        z = torch.stft(x, 16, window=window, return_complex=True, **options)
        back = torch.istft(z, 16, window=window, length=80, **options)
        note("shapes", [list(z.shape), list(back.shape)])
        note("the same", bool((back - x).abs().max() < 1e-5))
