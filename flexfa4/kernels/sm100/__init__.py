"""The Blackwell forward: warps of different roles, and two query tiles in tensor memory, one in softmax and one in a product."""
