"""The beginning of small programs that the real bodies carry out in seconds: a tiny policy on two types of orders."""

DESK = """\
policy:
  init:
    kind: scratch
    hidden_size: 48
    layers: 1
    heads: 4
    kv_heads: 2
    intermediate_size: 64
    max_length: 128
    tokenizer: {kind: bpe, vocab_size: 420, train_on: demos}
environments: {desk: {kind: order_desk, types: [stock, mail], max_turns: 4}}
agent: {max_new_tokens: 24}
data:
  demos: {kind: demonstrations, environment: desk, size: 160}
  train: {kind: problems, environment: desk, size: 16}
"""
"""Policy, environment, agent, and the data sets `demos` and `train`; further data sets may follow."""

OTHER_TOKENS = """\
    kind: trained
    template: builtin/chatml@1
    init:
      kind: scratch
      hidden_size: 32
      layers: 1
      intermediate_size: 48
      max_length: 768
      tokenizer: {kind: bpe, vocab_size: 300, schema_tokens: false, train_on: clean}
    algorithm: {type: sft, batch: {tokens: 4096}}
    data: [clean]
    align: {max_gap: 1000}
"""
"""A teacher, to follow its name: tiny, with tokens and a template of its own, trained on the data set `clean`."""
