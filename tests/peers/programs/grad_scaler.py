"""`GradScaler` on the CPU: scales, skipped steps, states and errors."""


def _training(torch, **options):
    parameter = torch.nn.Parameter(torch.tensor([1.0, 2.0], dtype=torch.float64))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    return parameter, optimizer, torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2, **options)


def scales_and_skipped_steps(torch, note):
    parameter, optimizer, scaler = _training(torch)
    for factor in (1.0, 1.0, 2.0, float("inf"), 1.0, float("nan"), 3.0, 1.0, 1.0):
        optimizer.zero_grad()
        scaled = scaler.scale((parameter * factor).sum())
        note("scaled", scaled)
        scaled.backward()
        scaler.step(optimizer)
        scaler.update()
        note("after", parameter, scaler.get_scale(), scaler.state_dict())
    scaler.update(32.0)
    note("set", scaler.get_scale())


def unscaled_gradients(torch, note):
    parameter, optimizer, scaler = _training(torch, growth_factor=4.0, backoff_factor=0.25)
    first, second = scaler.scale([parameter.sum(), (2 * parameter).sum()])
    (first + second).backward()
    note("scaled", parameter.grad)
    scaler.unscale_(optimizer)
    note("unscaled", parameter.grad)
    note.error("unscaled twice", lambda: scaler.unscale_(optimizer), "has already been called")
    scaler.step(optimizer)
    note.error("stepped twice", lambda: scaler.step(optimizer), "has already been called")
    scaler.update()
    note.error("nothing to update", lambda: scaler.update(), "No inf checks were recorded")
    note("after", parameter, scaler.get_scale(), scaler.get_growth_factor(), scaler.get_backoff_factor())


def states_and_switched_off(torch, note):
    parameter, optimizer, scaler = _training(torch)
    other = torch.amp.GradScaler("cpu")
    other.load_state_dict(scaler.state_dict())
    note("loaded", other.get_scale(), other.state_dict())
    off = torch.amp.GradScaler("cpu", enabled=False)
    note("off", off.is_enabled(), off.get_scale(), off.state_dict(), off.scale(parameter) is parameter)
    note.error("empty", lambda: scaler.load_state_dict({}), "state dict is empty")
    note.error("factor", lambda: torch.amp.GradScaler("cpu", growth_factor=1.0), "growth factor must be > 1.0")
    parameter.sum().backward()
    off.step(optimizer)
    off.update()
    note("stepped", parameter)


def gradients_in_float16_and_the_largest_scale(torch, note):
    parameter = torch.nn.Parameter(torch.ones(2, dtype=torch.float16))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126, growth_interval=1)
    scaler.scale(torch.ones(()))
    parameter.grad = torch.full((2,), 1e-3, dtype=torch.float16)
    note.error("unscaled", lambda: scaler.unscale_(optimizer), "Attempting to unscale FP16 gradients.")
    note.error("stepped", lambda: scaler.step(optimizer), "Attempting to unscale FP16 gradients.")
    note("unchanged", parameter, parameter.grad)
    parameter, optimizer, _ = _training(torch)
    for _ in range(3):
        parameter.grad = torch.ones(2, dtype=torch.float64)
        scaler.step(optimizer)
        scaler.update()
        note("scale", scaler.get_scale())
