"""Where tensors and their memory are: devices, DLPack, and how exact products are on them."""
