"""`backward` and `grad`: what they compute, free, accumulate and refuse."""

import copy
import threading

import numpy as np

from tests.peers.record import chain, name_of


def _leaf(torch, *shape, seed=0):
    return torch.tensor(np.random.default_rng(seed).uniform(0.2, 1.8, shape), requires_grad=True)


def nodes_have_names_and_edges(torch, note):
    x, y = _leaf(torch, 2, 3), _leaf(torch, 2, 3, seed=1)
    note("sum of products", chain((x * y + x).sum().grad_fn))
    note("functions", chain((x.exp().log() - y.sqrt() / 2).mean().grad_fn))
    note("matrices", chain((x @ y.t()).grad_fn))
    note("views", chain(x.reshape(6)[1:].view(5, 1).squeeze(1).grad_fn))
    note("constants", chain((x * torch.ones(2, 3, dtype=torch.float64)).grad_fn))
    note("softmax", chain(x.softmax(1).grad_fn), chain(x.log_softmax(1).grad_fn))
    note("cat", chain(torch.cat((x, y)).grad_fn), chain(torch.stack((x, y)).grad_fn))
    note("permuted", chain(x.permute(1, 0).grad_fn), chain(x.transpose(0, 1).grad_fn), chain(x.unsqueeze(0).grad_fn))
    note("reduced", chain(x.max().grad_fn), chain(x.sum(1).grad_fn), chain(x.prod().grad_fn), chain(x.std().grad_fn))
    note("in place", chain((x * 1).add_(1).mul_(y).grad_fn))
    note("written", chain(_written(x, y).grad_fn))
    note("leaf", x.grad_fn)


def _written(x, y):
    a = x * 1
    a[0] = y[1]
    return a


NAMED = """
    x.abs() x.acos() x.amax() x.asin() x.atan() x.atan2(y) x.ceil() x.clamp(0,1) x.clone() x.cos() x.cosh()
    x.cumsum(0) x.div(y) x.erf() x.exp() x.expand(2,2,3) x.expm1() x.flip(0) x.floor() x.gather(1,i)
    x.index_select(0,i[0]) x.lerp(y,0.5) x.log() x.log1p() x.log2() x.log10() x.logsumexp(1)
    x.masked_fill(x>1,0) x.max(1)[0] x.mean(1) x.min() x.mm(y.t()) x.mul(y) x.mv(y[0]) x.narrow(1,0,2) x.neg()
    x.norm() x.pow(2) x.pow(y) x.prod() x.reciprocal() x.relu() x.remainder(y) x.repeat(2,1) x.roll(1) x.round()
    x.rsqrt() x.select(0,1) x.sigmoid() x.sign() x.sin() x.sinh() x.softmax(0) x.sort()[0] x.split(1)[0]
    x.sqrt() x.squeeze() x.std() x.sub(y) x.sum() x.t() x.tan() x.tanh() x.topk(1)[0] x.transpose(0,1) x.tril()
    x.triu() x.trunc() x.unbind(0)[0] x.unsqueeze(0) x.var() x.view(3,2) x.where(x>1,y) x.flatten() x.T x.mT
    x.double() x.float() x.maximum(y) x.minimum(y) x.square() x.scatter(1,i,y) x.scatter_add(1,i,y)
    x.index_add(0,i[0],y[:1]) x[0].dot(y[0]) x[0].outer(y[0]) x[None].bmm(y[None].mT) torch.where(x>1,x,y)
    torch.cat((x,y)) torch.stack((x,y)) torch.addmm(x,y,y.t()@y) torch.logaddexp(x,y) torch.addcmul(x,y,y)
    torch.addcdiv(x,y,y) F.gelu(x) F.silu(x) F.elu(x) F.leaky_relu(x) F.softplus(x) F.mse_loss(x,y)
    F.l1_loss(x,y) F.smooth_l1_loss(x,y) F.huber_loss(x,y) F.nll_loss(x,i[:,0]) F.cross_entropy(x,i[:,0])
    F.embedding(i,x) F.layer_norm(x,(3,)) F.pad(x,(1,1)) F.linear(x,y,y[:,0]) F.linear(x,y)
    F.binary_cross_entropy_with_logits(x,y) F.log_softmax(x,0)
"""


def every_operation_is_named_as_its_node(torch, note):
    for call in NAMED.split():
        x, y = _leaf(torch, 2, 3), _leaf(torch, 2, 3, seed=1)
        names = {"torch": torch, "F": torch.nn.functional, "x": x, "y": y, "i": torch.tensor([[1], [0]])}
        note(call, name_of(eval(call, names).grad_fn))


def metadata_is_the_users(torch, note):
    y = _leaf(torch, 2) * 2
    y.grad_fn.metadata["key"] = [1, 2]
    note("metadata", y.grad_fn.metadata["key"], len((_leaf(torch, 2) * 2).grad_fn.metadata))


def gradients_add_up(torch, note):
    x = _leaf(torch, 3)
    ((x * x).sum() + (x * 3).sum()).backward()
    note("first", x.grad)
    (x * 2).sum().backward()
    note("second", x.grad)
    kept = x.grad
    (x * 2).sum().backward()
    note("in place", x.grad is kept, kept)
    x.grad = None
    x.sum().backward()
    note("anew", x.grad, kept)


def a_second_backward_is_an_error_unless_retained(torch, note):
    x = _leaf(torch, 2)
    y = (x * x).sum()
    y.backward(retain_graph=True)
    y.backward()
    note("twice", x.grad)
    note.error("a third time", y.backward, "Trying to backward through the graph a second time", "retain_graph=True")
    z = (x + 1).sum()
    z.backward()
    z.backward()
    note("nothing was saved", x.grad)
    a = x * x
    b, c = a.exp().sum(), a.sum()
    b.backward()
    note.error("a shared part", c.backward, "Specify retain_graph=True")


def roots_without_gradients_are_errors(torch, note):
    x = _leaf(torch, 2)
    plain = torch.ones(2)
    note.error("no graph", lambda: plain.sum().backward(), "does not require grad")
    note.error("not a scalar", lambda: (x * 2).backward(), "grad can be implicitly created only for scalar outputs")
    note.error("detached", lambda: (x * 2).detach().sum().backward(), "does not require grad")
    mismatch = "Mismatch in shape: grad_output[0] has a shape of", "and output[0] has a shape of"
    note.error("shape", lambda: (x * 2).backward(torch.ones(3)), *mismatch)
    note.error("input without", lambda: torch.autograd.grad(x.sum(), plain), "does not require grad")
    other = _leaf(torch, 2)
    note.error("unused", lambda: torch.autograd.grad(x.sum(), other), "appears to not have been used", "allow_unused")
    note("allowed", torch.autograd.grad(x.sum(), other, allow_unused=True))
    note("materialized", torch.autograd.grad(x.sum(), other, materialize_grads=True))
    note.error("both", lambda: torch.autograd.grad(x.sum(), x, allow_unused=False, materialize_grads=True))
    note.error("no inputs", lambda: x.sum().backward(inputs=[]), "cannot be empty")
    note.error("counts", lambda: torch.autograd.backward([x.sum(), x.sum()], [torch.ones(())]))


def grad_takes_sequences(torch, note):
    x, y = _leaf(torch, 2), _leaf(torch, 2, seed=1)
    g = torch.autograd.grad((x * y).sum(), (x, y))
    note("type", isinstance(g, tuple), g)
    note("several outputs", torch.autograd.grad([(x * y).sum(), x.sum()], [x, y]))
    note("weights", torch.autograd.grad([x * y, x], [x], [torch.full((2,), 2.0), torch.full((2,), 3.0)]))
    note("none is ones", torch.autograd.grad([(x * y).sum(), (x * x).sum()], x, [None, torch.tensor(2.0)]))
    note("same twice", torch.autograd.grad((x * y).sum(), [x, x]))
    note("nothing accumulates", x.grad, y.grad)
    torch.autograd.backward([(x * y).sum(), x.sum()])
    note("backward", x.grad, y.grad)
    a = x * 2
    note("of a non-leaf", torch.autograd.grad((a * a).sum(), a))


def batched_gradients(torch, note):
    x = _leaf(torch, 3)
    y = x * x
    note("rows", torch.autograd.grad(y, x, torch.eye(3, dtype=torch.float64), is_grads_batched=True))


def inputs_limit_where_gradients_go(torch, note):
    x, y = _leaf(torch, 2), _leaf(torch, 2, seed=1)
    (x * y).sum().backward(inputs=[x])
    note("leaf", x.grad, y.grad)
    a = x * 3
    (a * y).sum().backward(inputs=a)
    note("non-leaf", a.grad, x.grad)
    b = x * 3
    b.exp().sum().backward(inputs=[b, x])
    note("both", b.grad, x.grad)


def derivatives_of_higher_order(torch, note):
    x = _leaf(torch, 2)
    g = (x**4).sum()
    for order in range(4):
        (g,) = torch.autograd.grad(g.sum(), x, create_graph=True)
        note(f"order {order + 1}", g)


def create_graph_accumulates_with_a_graph(torch, note):
    x = _leaf(torch, 2)
    (x**3).sum().backward(create_graph=True)
    note("graph", x.grad, x.grad.requires_grad)
    x.grad.sum().backward()
    note("second", x.grad)
    x.grad = None


def a_gradient_penalty(torch, note):
    x, w = _leaf(torch, 4, 3), _leaf(torch, 3, 2, seed=1)
    y = (x @ w).tanh().sum()
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    ((g.norm(dim=1) - 1) ** 2).sum().backward()
    note("penalty", g, w.grad, x.grad)


def zero_size_tensors(torch, note):
    x = torch.zeros(0, 3, dtype=torch.float64, requires_grad=True)
    (x * 2).sum().backward()
    note("gradient", x.grad)
    y = _leaf(torch, 2)
    torch.cat((y, y[:0])).sum().backward()
    note("partly", y.grad)


def integers_have_no_gradient(torch, note):
    x = _leaf(torch, 2)
    note("flags", x.long().requires_grad, (x > 1).requires_grad, x.argmax().requires_grad)
    note.error("integer leaf", lambda: torch.tensor([1, 2], requires_grad=True), "floating point")
    note.error("integer leaf later", lambda: torch.tensor([1, 2]).requires_grad_(), "floating point")


def unused_outputs_count_as_zeros(torch, note):
    x = _leaf(torch, 3, 2)
    x.unbind(0)[1].sum().backward()
    note("unbind", x.grad)
    x.grad = None
    x.max(1)[0][0].backward()
    note("max", x.grad)
    x.grad = None
    values, _ = x.sort(0)
    values[2].sum().backward()
    note("sort", x.grad)


def leaves_and_flags(torch, note):
    x = _leaf(torch, 2)
    y = x * 2
    note("leaf", x.is_leaf, y.is_leaf, y.requires_grad, torch.ones(2).is_leaf)
    note("detached", y.detach().requires_grad, y.detach().is_leaf, y.detach().data_ptr() == y.data_ptr())
    flags = "you can only change requires_grad flags of leaf variables"
    note.error("clear a non-leaf", lambda: setattr(y, "requires_grad", False), flags)
    z = y.detach_()
    note("in place", z is y, y.requires_grad, y.grad_fn)
    w = torch.ones(2).requires_grad_()
    note("set", w.requires_grad, w.requires_grad_(False).requires_grad)
    note.error("detach a view", lambda: (x * 1)[0].detach_(), "Can't detach views in-place. Use detach() instead")
    note.error("copy a non-leaf", lambda: copy.deepcopy(x * 1), "created explicitly by the user (graph leaves)")
    note.error("truth", lambda: bool(x), "Boolean value of Tensor with more than one value is ambiguous")
    note("output_nr", x.unbind(0)[1].output_nr, y.output_nr)


def a_non_leafs_gradient_is_kept_on_request(torch, note):
    x = _leaf(torch, 2)
    y = x * 2
    y.retain_grad()
    note("before", y.retains_grad, y.grad)
    (y * y).sum().backward()
    note("after", y.grad, x.grad)
    note.error("of a constant", lambda: torch.ones(2).retain_grad(), "can't retain_grad on Tensor that has")
    note("of a leaf", x.retains_grad)


def materialized_zeros_are_differentiated_again(torch, note):
    x, unused = _leaf(torch, 2), _leaf(torch, 3, seed=1)
    grad = torch.autograd.grad
    for create_graph in (False, True):
        gradient, zeros = grad((x * x).sum(), [x, unused], create_graph=create_graph, materialize_grads=True)
        note("zeros", zeros, zeros.requires_grad, zeros.is_leaf)
    note.error("without zeros again", lambda: grad(zeros.sum(), x), "appears to not have been used")
    note("unused again", grad(zeros.sum(), [x, unused], allow_unused=True))
    note("zeros again", grad(zeros.sum(), [x, unused], materialize_grads=True))
    (gradient.sum() + zeros.sum()).backward()
    note("with others", x.grad, unused.grad)


def wrong_gradients_are_refused(torch, note):
    x = _leaf(torch, 2)
    note.error("shape", lambda: setattr(x, "grad", torch.ones(3, dtype=torch.float64)))
    note.error("dtype", lambda: setattr(x, "grad", torch.ones(2, dtype=torch.float32)))
    note.error("type", lambda: setattr(x, "grad", 1.0))
    note.error("itself", lambda: setattr(x, "grad", x), "as its own grad")
    x.grad = torch.ones(2, dtype=torch.float64)
    x.sum().backward()
    note("accumulates", x.grad)


def ten_threads_share_a_leaf(torch, note):
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)

    def work(i):
        for _ in range(20):
            (x * x * i).sum().backward()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    note("gradient", x.grad)


def backward_in_a_hook(torch, note):
    x = _leaf(torch, 2)
    inner = _leaf(torch, 2, seed=1)

    def hook(g):
        with torch.enable_grad():
            (inner * inner).sum().backward()
        return g * inner.grad

    y = x * 2
    y.register_hook(hook)
    y.sum().backward()
    note("gradients", x.grad, inner.grad)


def deep_reentrance(torch, note):
    class Nested(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, depth):
            ctx.depth = depth
            with torch.enable_grad():
                ctx.x = x.detach().requires_grad_()
                ctx.y = (Nested.apply(ctx.x, depth - 1) if depth else ctx.x) * 1.01
            return ctx.y.detach()

        @staticmethod
        def backward(ctx, g):
            with torch.enable_grad():
                ctx.y.sum().backward()
            return ctx.x.grad * g, None

    x = _leaf(torch, 2)
    Nested.apply(x, 70).sum().backward()
    note("gradient", x.grad)


def an_error_in_backward_leaves_the_engine_usable(torch, note):
    x = _leaf(torch, 2)
    y = x * 2
    handle = y.register_hook(lambda g: 1 / 0)
    note.error("raises", y.sum().backward, "division")
    handle.remove()
    note("mode", torch.is_grad_enabled())
    (x * 2).sum().backward()
    note("works", x.grad)


def a_broadcast_operands_gradient_has_its_shape(torch, note):
    x, y, s = _leaf(torch, 2, 3), _leaf(torch, 3, seed=1), _leaf(torch, seed=2)
    (x * y + s).sum().backward()
    note("gradients", x.grad, y.grad, s.grad)


def dtypes_of_gradients(torch, note):
    x = torch.tensor([1.0, 2.0], dtype=torch.float32, requires_grad=True)
    y = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    (x * y).sum().backward()
    note("mixed", x.grad, y.grad)
    x.grad = None
    x.double().sum().backward()
    note("converted", x.grad)


def gradients_given_to_backward(torch, note):
    def case(name, call, *phrases):
        x = _leaf(torch, 2)
        try:
            call(x)
        except Exception as error:
            wanted = error
            note.error(name, lambda: _raise(wanted), *phrases)
        else:
            note(name, x.grad)

    case("float", lambda x: (x * 2).backward(torch.ones(2)))
    case("int", lambda x: (x * 2).backward(torch.ones(2, dtype=torch.int64)))
    case("broadcast", lambda x: (x * 2).backward(torch.ones(1, dtype=torch.float64)))
    case("0-d for (1,)", lambda x: (x[:1] * 2).backward(torch.ones((), dtype=torch.float64)))
    case("0-d of 0-d", lambda x: (x * 2).sum().backward(torch.tensor(3.0, dtype=torch.float64)))
    case("one element", lambda x: (x[:1] * 2).backward())
    case("1 × 1", lambda x: (x[:1] * 2).reshape(1, 1).backward())
    case("several", lambda x: torch.autograd.backward([x * 2, x.sum()], [torch.ones(2, dtype=torch.float64), None]))
    case("tuple for one", lambda x: torch.autograd.backward(x * 2, (torch.ones(2, dtype=torch.float64),)))
    case("none among several", lambda x: torch.autograd.backward([x * 2, x.sum()], [None, None]), "scalar outputs")
    case("keyword", lambda x: (x * 2).backward(gradient=torch.ones(2, dtype=torch.float64)))
    case("requires a gradient", lambda x: (x * 2).backward(torch.ones(2, dtype=torch.float64, requires_grad=True)))


def _raise(error):
    raise error


def second_derivatives_by_the_gradient_given(torch, note):
    x = _leaf(torch, 2)
    v = _leaf(torch, 2, seed=1)
    (g,) = torch.autograd.grad((x**3), x, v, create_graph=True)
    note("by both", torch.autograd.grad(g.sum(), [x, v], allow_unused=True))


def create_graph_and_retain_graph(torch, note):
    x = _leaf(torch, 2)
    y = (x**3).sum()
    (g,) = torch.autograd.grad(y, x, create_graph=True, retain_graph=False)
    note.error("freed though it can be differentiated", y.backward, "second time")
    note("first", g)
    y = (x**3).sum()
    torch.autograd.grad(y, x, create_graph=True)
    y.backward()
    note("kept by create_graph", x.grad)


def parts_of_a_graph_are_freed_as_they_run(torch, note):
    x = _leaf(torch, 2)
    a = x.exp()
    b = a.sin()
    c = a.cos()
    torch.autograd.grad(b.sum(), a)
    note.error("b again", lambda: torch.autograd.grad(b.sum(), a), "second time")
    note("c", torch.autograd.grad(c.sum(), a, retain_graph=True))
    c.sum().backward()
    note("all", x.grad)
    note.error("a again", a.sum().backward, "second time")


def inputs_that_do_not_fit(torch, note):
    x = _leaf(torch, 2)
    y = (x * x).sum()
    note.error("no tensor", lambda: torch.autograd.grad(y, 3))
    note.error("output is no tensor", lambda: torch.autograd.grad(3, x))
    note.error("none", lambda: torch.autograd.grad(y, [x, None]))
    note.error("empty", lambda: torch.autograd.grad(y, []))
    note.error("backward to a constant", lambda: y.backward(inputs=[torch.ones(2)]))
    note.error("grad shapes", lambda: torch.autograd.grad(x * 2, x, torch.ones(3, dtype=torch.float64)), "Mismatch in")
    note.error("grad counts", lambda: torch.autograd.grad([x * 2], x, [torch.ones(2), torch.ones(2)]))
    note("still works", torch.autograd.grad(y, x))


def gradients_of_views_of_leaves(torch, note):
    x = _leaf(torch, 2, 3)
    v = x[0]
    w = x.t()
    (v.sum() * w.sum()).backward()
    note("base", x.grad, v.grad)
    note("by a view", torch.autograd.grad((v * v).sum(), v))


def a_leaf_used_many_times(torch, note):
    x = _leaf(torch, 2)
    y = x
    for i in range(10):
        y = y * x + x * i
    y.sum().backward()
    note("gradient", x.grad)


def gradients_may_be_changed_and_replaced(torch, note):
    x = _leaf(torch, 2)
    x.sum().backward()
    with torch.no_grad():
        x.grad.mul_(5)
    x.sum().backward()
    note("scaled", x.grad)
    x.grad.zero_()
    x.sum().backward()
    note("zeroed", x.grad)
    del x.grad
    note("deleted", x.grad)
    x.sum().backward()
    note("anew", x.grad)


def requires_grad_switched_between(torch, note):
    x, y = _leaf(torch, 2), _leaf(torch, 2, seed=1)
    z = x * y
    y.requires_grad_(False)
    z.sum().backward()
    note("after the forward", x.grad, y.grad)
    x.grad = None
    (x * y).sum().backward()
    note("before the forward", x.grad, y.grad)
    y.requires_grad = True
    (x * y).sum().backward()
    note("again", y.grad)


def detach_within_a_graph(torch, note):
    x = _leaf(torch, 2)
    a = x * 2
    d = a.detach()
    (a * d).sum().backward()
    note("gradient", x.grad)
    d.requires_grad_()
    (d * 3).sum().backward()
    note("of the detached", d.grad, x.grad)
    b = x * 2
    c = b.exp()
    b.detach_()
    c2 = b.exp()
    note("flags", b.is_leaf, b.requires_grad, c.requires_grad, c2.requires_grad)
    c.sum().backward()
    note("the graph stays", x.grad)


def re_entrant_backward_in_a_function_and_accumulation(torch, note):
    inner = _leaf(torch, 2, seed=1)

    class Reenter(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            with torch.enable_grad():
                ctx.x = x.detach().requires_grad_()
                ctx.y = (ctx.x * inner).exp()
            return ctx.y.detach()

        @staticmethod
        def backward(ctx, g):
            ctx.y.backward(g)
            return ctx.x.grad

    x = _leaf(torch, 2)
    (Reenter.apply(x) + Reenter.apply(x * 2)).sum().backward()
    note("gradients", x.grad, inner.grad)


def outputs_of_one_node_as_roots(torch, note):
    x = _leaf(torch, 2, 3)
    a, b = x.unbind(0)
    ones = torch.ones(3, dtype=torch.float64)
    torch.autograd.backward([a, b], [ones, ones * 2])
    note("both", x.grad)
    values, indices = x.sort(1)
    note("indices", indices.requires_grad, indices.grad_fn is None)
    note("one", torch.autograd.grad(values[0], x, ones))
    note("root and its input", torch.autograd.grad([x.exp().sum(), x.sum()], x))


def order_of_independent_branches(torch, note):
    x = _leaf(torch, 2)
    ran = []
    branches = []
    for i in range(4):
        y = x * (i + 1)
        y.register_hook(lambda g, i=i: ran.append(i))
        branches.append(y)
    sum(branches).sum().backward()
    note("newest first", ran)
