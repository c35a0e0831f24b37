"""Where spillgrad differs from its peers on purpose, each with the reason; the tests fail when one no longer does."""

_ORDER = "what is saved is packed in the order of the arguments, then the results; PyTorch's order is its code's"
_FUSED = "one kernel computes it, and saves what its backward needs"
_LESS = "what no gradient needs is not saved"
_COMPOSED = "it is composed of operations with gradients of their own"
_RIGHT = "the gradient is right, so that there is nothing to refuse"
_ASSERTED = "what users give wrong is a ValueError, not an AssertionError"
_VIEW = "a change of a view keeps the view's own graph, which leads to the same gradients"

# Program -> entry (or "sequence", where other things are noted at all) -> reason.
TORCH: dict[str, dict[str, str]] = {
    "saved_tensors.operations_pack_what_their_gradients_need_in_order": {
        "x * y": _ORDER,
        "x / y": _ORDER,
        "x ** y": _ORDER,
        "torch.maximum(x, y)": _ORDER,
        "x @ q": _ORDER,
        "2 / x": "the input is saved; PyTorch saves the reciprocal it made on the way",
        "torch.nn.functional.linear(x, q, v)": "the weight is saved as it is, PyTorch saves its transpose",
        "x.prod()": _LESS,
        "x[torch.tensor([0, 0])]": "an index is kept as a constant of the node, outside the hooks",
        "x.gather(1, torch.tensor([[0], [2]]))": _LESS,
        "torch.nn.functional.nll_loss(x, torch.tensor([1, 0]))": _COMPOSED,
        "torch.nn.functional.cross_entropy(x, torch.tensor([1, 0]))": _FUSED,
        "torch.nn.functional.layer_norm(x, (3,), v, v)": _ORDER + "; its bias is not saved",
    },
    "autocast.the_dtype_of_each_operation": dict.fromkeys(
        ("torch.mv(x, v)", "torch.dot(v, v)"),
        "they compute in float32 whatever they are given; PyTorch mixes no dtypes",
    ),
    "saved_tensors.unpacking_happens_in_backward_once_a_use_in_reverse": {"pack": _ORDER, "unpack": _ORDER},
    "saved_tensors.an_unpack_hook_may_register_a_hook_on_the_running_node": {
        "node hook": "it sees the gradients of the outputs as any node hook does; PyTorch has let them go by then"
    },
    "saved_tensors.packed_values_have_no_graph": {
        "graphs": "a pack hook sees a tensor without graph, so that keeping it keeps no graph alive"
    },
    "saved_tensors.graphs_with_hooks_die_without_the_collector": {
        "alive": "under PyTorch, a pack hook that keeps an operation's output keeps the whole graph alive"
    },
    "saved_tensors.what_was_unpacked_may_have_another_dtype_or_shape": dict.fromkeys(
        ("dtype", "shape", "more dims"), "PyTorch computes a wrong gradient, or one of another shape, in silence"
    ),
    "saved_tensors.changes_after_packing": dict.fromkeys(
        ("identity", "gradient", "result"), "PyTorch computes a wrong gradient in silence"
    ),
    "saved_tensors.packing_of_in_place_operations": {"pack": _ORDER, "unpack": _ORDER},
    "saved_tensors.hooks_around_views_and_their_changes": {"pack": _ORDER, "unpack": _ORDER},
    "saved_tensors.unpacking_stops_where_no_gradient_is_wanted": {"pack": _ORDER, "unpack": _ORDER},
    "saved_tensors.allowed_mutations": {"base": "PyTorch's gradient is that of the changed values: wrong"},
    "engine.inputs_that_do_not_fit": {"grad counts": "a surplus gradient is a mistake, which PyTorch overlooks"},
    "custom_functions.dirty_leaves_without_gradient_and_views": {
        "unrecorded": "a leaf that changes in no_grad goes on requiring its gradient, as with any in-place operation"
    },
    "custom_functions.saving_twice": {"twice": "the first tensors would be lost in silence"},
    "engine.nodes_have_names_and_edges": {
        "written": _VIEW,
    },
    "engine.every_operation_is_named_as_its_node": {
        "torch.addmm(x,y,y.t()@y)": _COMPOSED,
        "torch.addcmul(x,y,y)": _COMPOSED,
        "torch.addcdiv(x,y,y)": _COMPOSED,
        "F.nll_loss(x,i[:,0])": _COMPOSED,
        "F.cross_entropy(x,i[:,0])": _COMPOSED,
        "F.linear(x,y,y[:,0])": _FUSED,
        "F.linear(x,y)": _FUSED,
    },
    "hooks.the_node_of_a_non_leaf_among_inputs": {
        "its node ran": "what lies behind the inputs is not asked for, so it is neither computed nor freed"
    },
    "hooks.retained_gradients_and_in_place_changes_of_views": {"gradients": _VIEW + ", and to its own"},
    "checkpoint.random_numbers_are_drawn_again": {
        "same": "a dropout keeps where it drew, not what: nothing is drawn again",
        "the stream outside goes on": "a dropout keeps where it drew, not what: nothing is drawn again",
    },
    "checkpoint.a_kept_result_that_changed_is_an_error": {
        "allowed True": "exp saved the result that changed: the gradient would be wrong"
    },
    "checkpoint.hooks_outside_and_kept_results": {
        "packed": "hooks around a selective checkpoint pack what it keeps, so that save_on_disk can spill it"
    },
    "inference_mode.views_of_what_requires_a_gradient": dict.fromkeys(
        ("view in inference_mode", "view in no_grad"), "no gradient reaches anything through them, so they want none"
    ),
    "inplace.changes_give_the_gradients_of_what_they_compute": {
        "view read after its base": "a view of a changed base is computed again by the operation that made it",
    },
    "inplace.more_changes_and_their_first_and_second_derivatives": {
        "itself on both sides": _RIGHT,
        "relu after bias": "its derivative does not depend on the input, so that there is no second one",
    },
    "inplace.changes_of_what_backward_needs_are_errors": {
        "division: input": "the input is saved; PyTorch saves the reciprocal it made on the way",
        "prod: result": _LESS,
    },
    "inplace.versions_of_kinds_of_aliases": dict.fromkeys(
        ("data", "reshaped"), "a change through data counts too: backward may need what it overwrites"
    ),
    "inplace.nodes_of_a_changed_base_and_view": {"base": _VIEW},
    "inplace.views_of_several_outputs_and_of_unrecorded_times_refuse": {
        "unbind": _RIGHT,
        "split": _RIGHT,
        "chunk": _RIGHT,
        "made in no_grad": _RIGHT,
    },
    "complex_tensors.refusals": {
        "unique": "the array API standard wants the distinct complex numbers, so they are found"
    },
    "dtypes.a_dtype_is_one_object_of_one_class": {
        "whole text": "the text is the name alone, as of NumPy's dtypes; repr says spillgrad.float32",
    },
    "grad_scaler.unscaled_gradients": {"nothing to update": "PyTorch asserts, which says nothing under `python -O`"},
    "grad_scaler.states_and_switched_off": {"factor": "PyTorch asserts, which says nothing under `python -O`"},
    "data.iterable_datasets": {"a chain of lists": _ASSERTED},
    "data.datasets": dict.fromkeys(("none concatenated", "sizes"), _ASSERTED),
    "optimizers.what_is_no_parameter": {
        "twice in a group": "PyTorch warns, and updates it twice in each step, which nobody wants"
    },
    "optimizers.averaged_models": {"both": _ASSERTED},
}
# Row of the table of operations -> reason, in float64.
_COMPARISONS = "eq ne lt le gt ge less less_equal greater greater_equal not_equal"
TORCH_OPERATIONS: dict[str, str] = {
    "F.hardsigmoid(2 * x)": "PyTorch rounds a sixth to float32 also in float64",
    **{
        f"x.clone().{name}_(y)": "the other operand of a comparison has no gradient; PyTorch makes one of zeros"
        for name in _COMPARISONS.split()
    },
}
# Names both have which no row of the table of operations calls.
_AUTOCAST = """
    autocast clear_autocast_cache get_autocast_cpu_dtype get_autocast_dtype get_autocast_gpu_dtype
    is_autocast_cache_enabled is_autocast_cpu_enabled is_autocast_enabled
"""
_MODES = "enable_grad inference_mode is_grad_enabled is_inference is_inference_mode_enabled no_grad set_grad_enabled"
_DETERMINISM = """
    are_deterministic_algorithms_enabled get_deterministic_debug_mode is_deterministic_algorithms_warn_only_enabled
    set_deterministic_debug_mode use_deterministic_algorithms
"""
_ANOMALIES = "is_anomaly_check_nan_enabled is_anomaly_enabled"
_RANDOM = "get_rng_state initial_seed manual_seed rand rand_like randint randn randn_like randperm seed set_rng_state"
_DRAWN = "alpha_dropout bernoulli bernoulli_ binomial cauchy_ dropout1d dropout2d dropout3d exponential_"
_DRAWN_TOO = (
    "feature_alpha_dropout geometric_ gumbel_softmax log_normal_ multinomial normal normal_ "
    "poisson randint_like random_ rrelu uniform_"
)
_SETTINGS = """
    compile cuda device dtype get_default_device get_default_dtype get_float32_matmul_precision get_num_threads layout
    memory_format set_default_device set_default_dtype set_default_tensor_type set_float32_matmul_precision
    set_num_threads set_printoptions
"""
_MEMORY = "record_stream is_pinned is_shared pin_memory share_memory_"
_PROGRAMS = "multi_head_attention_forward"
_INERT = "get_num_interop_threads is_warn_always_enabled set_flush_denormal set_num_interop_threads set_warn_always"
_REMOVED = "eig lstsq matrix_rank solve symeig"
_OLDER = "chain_matmul range triangular_solve upsample upsample_bilinear upsample_nearest"
_PYTORCHS_OWN = "batch_norm gru_cell instance_norm lstm_cell load save version linear_cross_entropy"
_GRAPH = "backward data_ptr register_hook register_post_accumulate_grad_hook requires_grad_ retain_grad"
NOT_COMPARED: dict[str, str] = {
    **dict.fromkeys(f"{_AUTOCAST} {_MODES} {_ANOMALIES} {_GRAPH} {_PROGRAMS}".split(), "programs compare it"),
    **dict.fromkeys(f"{_RANDOM} {_DRAWN} {_DRAWN_TOO}".split(), "random numbers are each library's own"),
    **dict.fromkeys(f"{_SETTINGS} {_DETERMINISM} {_INERT}".split(), "a setting"),
    **dict.fromkeys(_MEMORY.split(), "they give the tensor itself, there being one kind of memory"),
    **dict.fromkeys(_REMOVED.split(), "PyTorch has removed it, and says so, too"),
    **dict.fromkeys(_OLDER.split(), "an older name, which warns; tests/ops/test_older_names.py compares it"),
    **dict.fromkeys(_PYTORCHS_OWN.split(), "another signature, or a file format, of the same name"),
}
# Program -> entry -> reason, of what differs from Paddle.
PADDLE: dict[str, dict[str, str]] = {
    "paddle_autograd.a_returned_input_of_a_layer": {
        "gradient": "Paddle loses the gradient of an input that is returned"
    },
    "paddle_autograd.grad_returns_a_list": {
        "unused is refused": "grad raises RuntimeError, as in PyTorch; Paddle raises ValueError"
    },
}
