"""Programs about Paddle's `nn.Layer`, and about what only Paddle's functions of the same names do."""

import numpy as np


def _net(paddle):
    class TwoSteps(paddle.nn.Layer):
        def __init__(self):
            super().__init__()
            self.weight = self.create_parameter([2, 3], default_initializer=lambda p, block=None: _fill(p, 0.5))
            self.bias = self.create_parameter([3], is_bias=True)
            self.act = self.add_sublayer("tanh", paddle.nn.Tanh())
            self.scale = self.add_parameter("scale_", self.create_parameter([1], is_bias=True))
            self.register_buffer("steps", paddle.to_tensor(np.zeros(1)))
            self.register_buffer("hidden", paddle.to_tensor(np.zeros(1)), persistable=False)

        def forward(self, x):
            return self.act(paddle.matmul(x, self.weight) + self.bias) + self.scale_

    return TwoSteps()


def _fill(parameter, value):
    parameter.set_value(np.full(parameter.shape, value, "float32")) if hasattr(parameter, "set_value") else (
        parameter.detach().fill_(value)
    )


def layers_register_and_name_what_they_hold(paddle, note):
    net = _net(paddle)
    note("parameters", [list(p.shape) for p in net.parameters()], [n for n, _ in net.named_parameters()])
    note("kinds", isinstance(net.parameters(), list), isinstance(net.sublayers(), list))
    note("values", net.weight, net.bias)
    note("sublayers", [type(layer).__name__ for layer in net.sublayers()])
    note("with self", [type(layer).__name__ for layer in net.sublayers(include_self=True)])
    note("names", sorted({n for n, _ in net.named_sublayers()}), [n for n, _ in net.named_sublayers(prefix="a")][:1])
    note("state", sorted(net.state_dict()))
    first, second = net.full_name(), _net(paddle).full_name()
    note("name", first.rpartition("_")[0], int(second.rpartition("_")[2]) - int(first.rpartition("_")[2]))
    note("no parameter", net.create_parameter([2], attr=False))
    note("no sublayers", len(net.parameters(include_sublayers=False)), len(net.buffers()))


def layers_train_and_load(paddle, note):
    net, other = _net(paddle), _net(paddle)
    x = paddle.to_tensor(np.arange(4.0).reshape(2, 2).astype("float32"))
    net(x).sum().backward()
    note("gradient", net.bias.grad)
    net.clear_gradients()
    note("cleared", float(abs(net.bias.grad).sum()))
    net.eval()
    note("mode", net.training, net.sublayers()[0].training)
    net.train()
    note("mode", net.training, net.sublayers()[0].training)
    _fill(net.bias, 3.0)
    for load in (other.set_state_dict, other.set_dict, other.load_dict):
        missing, unexpected = load(net.state_dict())
        note("loaded", other.bias, list(missing), list(unexpected))
    partial = {name: value for name, value in net.state_dict().items() if name != "bias"}
    missing, unexpected = other.set_state_dict({**partial, "more": net.bias})
    note("partly", list(missing), list(unexpected))


def hooks_of_layers(paddle, note):
    net = _net(paddle)
    x = paddle.to_tensor(np.ones((1, 2), "float32"))
    plain = net(x)
    before = net.register_forward_pre_hook(lambda layer, inputs: inputs[0] * 0)
    note("before", net(x))
    before.remove()
    after = net.register_forward_post_hook(lambda layer, inputs, output: output * 10)
    note("after", bool(paddle.allclose(net(x), plain * 10)))
    after.remove()
    note("removed", bool(paddle.equal_all(net(x), plain)))


def equality_of_whole_tensors(paddle, note):
    x = paddle.to_tensor(np.arange(3.0))
    found = paddle.equal_all(x, x), paddle.equal_all(x, x + 1), paddle.equal_all(x, paddle.to_tensor(np.zeros(2)))
    note("equal", [bool(one) for one in found], found[0], bool(x.equal_all(x)))


def an_output_of_a_layer_needs_no_gradient_to_start_from(paddle, note):
    class Scale(paddle.autograd.PyLayer):
        @staticmethod
        def forward(ctx, x):
            return x * 3

        @staticmethod
        def backward(ctx, dy):
            note("arriving", dy)
            return dy * 3

    x = paddle.to_tensor(np.arange(3.0), stop_gradient=False)
    Scale.apply(x).backward()
    note("gradient", x.grad)
