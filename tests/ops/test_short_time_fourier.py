"""The short-time Fourier transform beside NumPy's transforms of each window."""

import numpy as np

import spillgrad as sg


def test_aligned_windows_begin_at_the_first_sample():
    x, window = np.random.default_rng(0).normal(size=9), np.array([0.25, 0.5, 1.0])
    found = sg.stft(
        sg.tensor(x), 6, 2, 3, sg.tensor(window), center=False, return_complex=True, align_to_window=True
    ).numpy()
    for t in range(4):
        weighted = np.zeros(6)
        weighted[1:4] = x[2 * t : 2 * t + 3] * window  # the window stands in the middle of what is transformed
        np.testing.assert_allclose(found[:, t], np.fft.rfft(weighted), atol=1e-12)
    assert found.shape == (4, 4)


def test_gradients_are_those_of_central_differences():
    rng = np.random.default_rng(1)
    x, window = (sg.tensor(rng.normal(size=n) + 2, requires_grad=True) for n in (14, 4))

    def there_and_back(x, window):
        z = sg.stft(x, 6, 2, 4, window, return_complex=True)
        return sg.istft(z * z, 6, 2, 4, window)

    assert sg.autograd.gradcheck(there_and_back, (x, window))
    assert sg.autograd.gradgradcheck(lambda x, w: sg.stft(x, 6, 3, 4, w, return_complex=True).abs(), (x, window))
