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
