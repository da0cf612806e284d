"""Packed documents: tokens of one document see each other (Krell et al. 2021, "Efficient Sequence Packing without
Cross-contamination", section 3)."""


def document_mask(doc_ids):
    """Mask that is True where query and key carry the same label.

    `doc_ids` is an integer tensor, [S] for one packing shared by the batch or [B, S] for one packing each. Labels need no
    order, only equality matters.
    """
    if doc_ids.ndim == 1:
        def mask_mod(b, h, q, kv):
            return doc_ids[q] == doc_ids[kv]
    else:
        def mask_mod(b, h, q, kv):
            return doc_ids[b, q] == doc_ids[b, kv]
    return mask_mod
