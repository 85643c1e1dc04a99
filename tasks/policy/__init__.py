"""The policy: a Llama decoder, its files on disk and where its first weights come from."""
