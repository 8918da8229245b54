"""What methods and their results are called in tables and pictures."""

END_TO_END = "End-to-end reference"
BLOCK_SIZED = "Block-sized reference"

# Keys of `results` in a summary, in the order of the tables.
RESULTS = {
    "end_to_end": END_TO_END,
    "block_sized": BLOCK_SIZED,
    "ce_chain": "BlockTrain CE_chain",
    "ce_ensemble": "BlockTrain CE_ensemble",
    "ce_first": "BlockTrain CE_first",
    "ce_mix": "BlockTrain CE_mix",
}

# Which method (a key of `methods` in a summary, `method` in a record) gives a result.
METHOD_OF = {
    "end_to_end": "end_to_end",
    "block_sized": "block_sized",
    "ce_chain": "blocktrain",
    "ce_ensemble": "blocktrain",
    "ce_first": "blocktrain",
    "ce_mix": "blocktrain",
}

# The curves of a picture: a result, and the metric of a record that follows it.
CURVES = {
    "end_to_end": "ce",
    "block_sized": "ce",
    "ce_chain": "ce_chain",
    "ce_ensemble": "ce_ensemble",
    "ce_first": "ce_first",
}

_OTHERS = {
    "local_ce": "Local CE",
    "scrambled_gap": "Scrambled-context gap",
    "ppl_chain": "BlockTrain PPL of the chain",
    "bpb_chain": "BlockTrain bits/byte of the chain",
}


def label(result: str) -> str:
    """The name of a result for readers; an unknown key names itself.

    >>> label("ce_chain"), label("ce_other")
    ('BlockTrain CE_chain', 'ce_other')
    """
    return (RESULTS | _OTHERS).get(result, result)


def short(result: str) -> str:
    """The name of a result for the head of a narrow column.

    >>> short("ce_chain"), short("end_to_end")
    ('CE_chain', 'End-to-end')
    """
    return label(result).removeprefix("BlockTrain ").removesuffix(" reference")
