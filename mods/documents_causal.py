"""Packed documents, causal inside each: the pre-training mask of Llama 3 (Grattafiori et al. 2024, section 3.2)."""


def document_causal(doc_ids):
    """Mask that is True where the key is of the query's document and not after it. `doc_ids`: integer [S] or [B, S]."""
    if doc_ids.ndim == 1:
        def mask_mod(b, h, q, kv):
            return (kv <= q) & (doc_ids[q] == doc_ids[kv])
    else:
        def mask_mod(b, h, q, kv):
            return (kv <= q) & (doc_ids[b, q] == doc_ids[b, kv])
    return mask_mod
