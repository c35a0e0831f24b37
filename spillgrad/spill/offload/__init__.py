"""What `spillgrad.disk_offload` is made of."""
