"""The Hopper forward: one producer warp, and consumer warpgroups of 64 query rows each that do products and softmax."""
