"""One small tokenizer of each kind, trained here."""

import json
from functools import cache

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from tasks.tokens.bytes import AnyTokenizer

TEXTS = [
    'Order 12 "red lamp" for Ada Brandt. {"tool":"check_stock","product":"red lamp","quantity":12}',
    "The view of Tokyo tower at night, naïve café, straße, 你好 世界, Привет мир.",
    "cancel the order of two blue chairs and tell the customer why it was cancelled",
] * 20
SPECIALS = ["<|pad|>", "<|system|>", "<|user|>", "<|call|>", "<|result|>", "<|end|>"]
CHATML = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def byte_level(size: int = 400, specials: list[str] = SPECIALS) -> Backend:
    """GPT-2's way."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(TEXTS, trainer)
    return backend


def sentence_piece(size: int = 600, *, legacy: bool = False) -> Backend:
    """Llama 2's way: a space before every text, bytes for what the vocabulary lacks."""
    backend = Backend(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    if legacy:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    alphabet = sorted({c for t in TEXTS for c in t if c.isascii()})
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))],
        initial_alphabet=["▁", *alphabet],
        limit_alphabet=len(alphabet) + 1,
        show_progress=False,
    )
    backend.train_from_iterator(TEXTS, trainer)
    return with_bytes(backend)


def with_bytes(backend: Backend) -> Backend:
    """Make the byte tokens ordinary ones: a trainer knows no other way to put them in."""
    data = json.loads(backend.to_str())
    data["added_tokens"] = [t for t in data["added_tokens"] if not t["content"].startswith("<0x")]
    return Backend.from_str(json.dumps(data))


def unigram(size: int = 300) -> Backend:
    """T5's way: NFKC, spaces run together, an unknown token."""
    backend = Backend(models.Unigram())
    backend.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    backend.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=size, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(TEXTS, trainer)
    return backend


def word_piece(size: int = 500) -> Backend:
    """BERT's way: small letters, no accents, no spaces."""
    backend = Backend(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"], show_progress=False
    )
    backend.train_from_iterator(TEXTS, trainer)
    return backend


KINDS = {
    "byte_level": byte_level,
    "sentence_piece": sentence_piece,
    "legacy_piece": lambda: sentence_piece(legacy=True),
    "unigram": unigram,
    "word_piece": word_piece,
}


@cache
def tokenizer(kind: str) -> AnyTokenizer:
    """Return a tokenizer of one kind."""
    return AnyTokenizer(KINDS[kind](), kind)
