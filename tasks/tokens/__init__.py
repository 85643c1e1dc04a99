"""From text to token ids and back: tokenizer, chat template, source of every token."""
