"""Records what other libraries make of texts that are hard to tokenize, for the test `tokenizer_recorded`.

Trains small vocabularies on the text below, with `tokenizers` (byte-level BPE after the published expressions of four models)
and `sentencepiece` (BPE and unigram with the options that matter), and writes them with the ids and the decoded texts.

Packages: tokenizers 0.23.3, sentencepiece 0.2.3 (others round sums of scores in other ways, which decides ties), protobuf,
Python 3.11. Run it in the root of the repository:

    python snapshots/scripts/record_tokenizers.py

It overwrites engine/models/tests/data/tokenizers.json. With `--random N` the texts are N random ones instead, and with
`--nfkc` one more vocabulary has the full table of NFKC, which is too large to keep: for looking further by hand, with
`--out PATH` and ENTENSOR_TOKENIZER_CASES=PATH for the test.
"""

import argparse
import io
import json
import random
import tempfile
from pathlib import Path

import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as proto
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

OUT = Path("engine/models/tests/data/tokenizers.json")

CORPUS = """
The quick brown fox jumps over the lazy dog, and the lazy dog doesn't mind. It's what it's: they're here, we've been there,
I'm told that you'll see, he'd know. WE'RE SHOUTING, THEY'LL HEAR. In 1984 there were 365 days; in 2024 there were 366.
for (int i = 0; i < 100; i++) { total += values[i]; }
    def tokenize(text):
        return [piece for piece in text.split(" ") if piece]
The tokenizer splits text into tokens. The tokens are numbers, and the numbers are what the model reads and what it writes.
Die Straße ist schön, und über den Bäumen steht der Mond. Où est l'élève? À côté, près de la forêt. Niño, mañana, señor.
Привет, мир! Как дела? Хорошо, спасибо; а у тебя? Это простой текст, и это ещё один простой текст.
今天天气很好，我们去公园散步吧。東京は日本の首都です。こんにちは、世界。今日はいい天気ですね。한국어 텍스트도 있습니다.
مرحبا بالعالم، كيف حالك؟ שלום עולם, מה שלומך? नमस्ते दुनिया, यह एक परीक्षण है।
Some emoji: 🙂 👍 🎉. Some signs: € £ ¥ © ® ™ § ¶ • … — – “quoted” ‘single’ «french».
The sea, the sea, the open sea. Once upon a time there was a little girl who lived in a village near the forest.
She went through the forest with bread and wine for her grandmother, who lived half an hour from the village.
""".strip()

# Texts that other implementations get wrong, or could.
TEXTS = [
    "", " ", "  ", "   ", "a", " a", "a ", "  a  ", "\t", "\n", "\r\n", "\r", "\n\n\n", " \n", "\n ", " \n \n ", "\n\n a", "a\n\n",
    "a\r\n\r\nb", "a \r\n b", "a\t\tb", "\t a", " \t a", "a\u00a0b", "\u00a0\u00a0a", " \u00a0 a", "a\u3000b", "\u3000\u3000", "a\u2028b\u2029c",
    "a\u0085b", "\u0085\u0085", "a\u000bb\u000cc", "\u001c\u001d\u001e\u001f a", "a\u200bb", "\u200b", "a\u200d\u200cb", "\ufeffa", "\u2060",
    "\u0000", "a\u0000b", "\u0001\u0002\u007f", "a\u00adb", "\u180ea",
    "it's", "IT'S", "It'S", "it’s", "'s", "'S", "'sa", "''s", "' s", "'ſ", "it'ſ", "they're THEY'RE they'Re", "we've WE'VE",
    "I'm I'M", "you'll YOU'LL you'lL", "he'd HE'D", "don't DON'T", "'tis 'twas", "rock'n'roll", "'re're've'll'd's't'm", "a'b'c", "'LLama 'Ve",
    "l'élève d'été", "O'Neil's o'clock", "'", "''", "'''", "a'", "'a",
    "1", "12", "123", "1234", "12345", "123456", "1234567890", "0", "007", "3.14159", "1,234,567", "1 2 3", "  12", " 1 ", "a1b2c3", "1a2b",
    "x²+y³=z⁴", "½ ¼ ¾", "Ⅷ Ⅻ", "٣٤٥٦", "१२३४", "１２３４", "①②③", "1\n2", "12 \n", "$5.00", "100%", "v1.2.3-rc4", "2024-06-30T12:34:56Z",
    "naïve café", "cafe\u0301", "e\u0301e\u0301", "\u0301", "\u0301a", " \u0301a", "a\u0301\u0301\u0301b", "ǅ ß ẞ ŉ ﬁ ﬆ", "İstanbul ıi", "K Å Ω",
    "Straße STRASSE", "Привет, мир!", "ПРИВЕТ ещё", "今天天气很好", "今天 天气，很好。", "東京は日本の首都です。", "ｶﾀｶﾅ カタカナ", "한국어 텍스트", "\u1112\u1161\u11ab",
    "नमस्ते दुनिया", "क्षत्रिय", "ภาษาไทย", "مرحبا بالعالم", "שלום עולם", "a\u202eb\u202c", "العربية123עברית", "𐍈𐌰𐌹", "𝒳𝓎𝔷", "𠜎𠜱", "\U000e0001", "\ue000\U0010ffff",
    "🙂", "🙂🙂", "a🙂b", " 🙂 ", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪🇫🇷", "1️⃣", "☺️☹", "©®™",
    "!", "!!", "!!!\n", "?!\r\n\n", "a!b", "a !b", "a ! b", " !", " !a", "!a", "(a)", "( a )", "[x] {y} <z>", "a--b—c–d", "...", "…", "a...b", "\"quoted\"",
    "_a_b", "__init__", "snake_case CamelCase kebab-case", "a/b\\c", "C++ C# F#", "a@b.de", "https://example.org/a?b=c&d=e#f", "x=y==z===w", "+-*/%^&|~`", "¿qué? ¡sí!",
    "if (a<b) {\n\treturn;\n}\n", "    def f(x):\n        return x\n", "\n\n    \n  x", "a  b   c    d", "trailing   ", "trailing\n   ", "\t\tx\n\t\ty",
    "▁", "▁▁", "a▁b", " ▁ ", "▁the ▁", "<0x41>", "<0x0A>", "<unk>", "<s>", "</s>", "<|begin|>", "a<|begin|>b", "<|begin|><|end|>", "a <|end|> b", "<|begin", "<|end|>>",
    "<sep>", "a<sep>b", " <sep> ", "<sep><sep>", "<sep", "the<sep>the", "USERUSER user", "aUSER USERb", "<cls>a<cls>",
    "the the the", "The the THE tHe", "thethethe", " the", "the ", "sea,sea,sea", "tokenizer tokenizers tokenization", "the lazy dog", "text into", "text  into",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", " " * 65, "\n" * 33, "1" * 40, "!" * 40, "é" * 20, "今" * 20, "🙂" * 10, "ab" * 30, " a" * 30, "a\n" * 20, "'s" * 20,
    "the quick brown fox\njumps over\r\n\tthe lazy dog's 1234 bones!!  ",
]

POOL = list("aaabcdehiklmnorsttuvwxyzTHESL''''0123    \t\n\n\r.,!?-_<>|▁▁éßüñ²½Ⅷ٣Жещё今天気한नم") + [
    "\u0301", "\u00a0", "\u3000", "\u200b", "\u200d", "🙂", "👍", "\u0000", "\u007f", "\u0085", "ſ", "ﬁ", "ｶ", "①", "㍿", "\u00ad", "the", " the", "sea", "token",
    "<sep>", "USER", "<|end|>", "<unk>", "text ", "'re", "'LL", "aaaa", "    ", "<cls>", "Å", "한",
]

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")


def split(*expressions):
    steps = [pre_tokenizers.Split(Regex(expression), "isolated") for expression in expressions]
    return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


PRE_TOKENIZERS = {
    "smollm": lambda: split(r"\p{N}", GPT2),
    "gpt-2": lambda: split(GPT2),
    "llama-bpe": lambda: split(LLAMA3),
    "qwen2": lambda: split(QWEN2),
}

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def case(ids, decoded, text):
    """The ids, and the decoded text where it is another."""
    return ids if decoded == text else [ids, decoded]


def long_text(texts):
    """All texts many times over."""
    return "".join(texts) * 24


def digest(ids):
    """How many ids, and a hash of them."""
    value = 0
    for i in ids:
        value = (value * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF) ^ i
    return [len(ids), f"{value:016x}"]


def byte_level(pre, texts):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[pre]()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS.splitlines(keepends=True), trainer)
    trained = json.loads(tokenizer.to_str())["model"]
    vocabulary, merges = trained["vocab"], [tuple(merge) for merge in trained["merges"]]
    if pre == "llama-bpe":
        # Tokens that no merges lead to, and one that they would cut otherwise.
        for whole in ["Ġgrandmother", "Ġvillage", "366", "ĊĊĊ", "Ġ\u0124"]:
            vocabulary.setdefault(whole, len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre == "llama-bpe"))
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[pre]()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ["<|begin|>", "<|end|>", "<|end|>>"]])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in ["USER", "<sep>"]])
    tokens = [tokenizer.id_to_token(i) for i in range(tokenizer.get_vocab_size())]
    kinds = {"<|begin|>": CONTROL, "<|end|>": CONTROL, "<|end|>>": CONTROL, "USER": USER_DEFINED, "<sep>": USER_DEFINED}

    def encode(text, special):
        tokenizer.encode_special_tokens = not special
        return tokenizer.encode(text, add_special_tokens=False).ids

    def decode(ids):
        return tokenizer.decode(ids, skip_special_tokens=True)

    plain = [encode(text, False) for text in texts]
    special = [encode(text, True) for text in texts]
    return {
        "name": pre,
        "keys": {"model": "gpt2", "pre": pre, "bos_token_id": tokens.index("<|begin|>"), "eos_token_id": tokens.index("<|end|>")},
        "tokens": tokens,
        "token_type": [kinds.get(token, NORMAL) for token in tokens],
        "merges": [" ".join(merge) for merge in merges],
        "cases": [case(ids, decode(ids), text) for ids, text in zip(plain, texts)],
        "long": digest(encode(long_text(texts), False)),
        "special": {str(i): ids for i, ids in enumerate(special) if ids != plain[i]},
    }


def sentence_piece(name, texts, rules=None, keep=None, **options):
    buffer = io.BytesIO()
    with tempfile.NamedTemporaryFile("w", suffix=".tsv", encoding="utf-8") as file:
        if rules is not None:
            file.write("".join(f"{source}\t{target}\n" for source, target in rules))
            file.flush()
            options["normalization_rule_tsv"] = file.name
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(CORPUS.splitlines()), model_writer=buffer, minloglevel=2, unk_surface="",
            hard_vocab_limit=False, num_threads=1, **options,
        )
    model = proto.ModelProto.FromString(buffer.getvalue())
    if keep is not None:
        for i, piece in enumerate(model.pieces):
            if piece.type == NORMAL and not keep(i, piece.piece):
                piece.type = UNUSED
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())
    size = processor.piece_size()
    spec = model.normalizer_spec
    keys = {
        "model": "t5" if options["model_type"] == "unigram" else "llama",
        "unknown_token_id": processor.unk_id(),
        "bos_token_id": processor.bos_id(),
        "eos_token_id": processor.eos_id(),
        "add_space_prefix": spec.add_dummy_prefix,
        "remove_extra_whitespaces": spec.remove_extra_whitespaces,
    }
    return {
        "name": name,
        "keys": keys,
        "tokens": [processor.id_to_piece(i) for i in range(size)],
        "token_type": [model.pieces[i].type for i in range(size)],
        "scores": [processor.get_score(i) for i in range(size)],
        "charsmap": spec.precompiled_charsmap.hex(),
        "long": digest(processor.encode(long_text(texts))),
        "cases": [case(ids := processor.encode(text), processor.decode(ids), text) for text in texts],
    }


def random_texts(count):
    generator = random.Random(count)
    return ["".join(generator.choices(POOL, k=generator.randrange(40))) for _ in range(count)]


RULES = [
    ("41 30A", "C5"), ("65 301", "E9"), ("301", ""), ("A0", "20"), ("3000", "20"), ("9", "20"), ("A", "20"), ("FB01", "66 69"),
    ("BD", "31 2044 32"), ("FF76", "30AB"), ("200B", ""), ("41 30A 301", "1FA"), ("2026", "2E 2E 2E"), ("3C 73", "78"),
]


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--random", type=int)
    arguments.add_argument("--nfkc", action="store_true")
    arguments.add_argument("--out", type=Path, default=OUT)
    arguments = arguments.parse_args()
    texts = TEXTS if arguments.random is None else random_texts(arguments.random)
    vocabularies = [byte_level(pre, texts) for pre in PRE_TOKENIZERS]

    identity = dict(normalization_rule_name="identity", user_defined_symbols=["<sep>", "USER", "▁▁▁▁", "<sep>USER"], control_symbols=["<cls>"])
    vocabularies += [
        sentence_piece(
            "bpe with bytes", texts, model_type="bpe", vocab_size=600, byte_fallback=True, remove_extra_whitespaces=False,
            split_digits=True, character_coverage=0.98, **identity,
        ),
        sentence_piece(
            "bpe across words", texts, model_type="bpe", vocab_size=500, remove_extra_whitespaces=False, add_dummy_prefix=False,
            split_by_whitespace=False, character_coverage=0.98, allow_whitespace_only_pieces=True, **identity,
        ),
        sentence_piece(
            "bpe with unused tokens", texts, model_type="bpe", vocab_size=500, character_coverage=0.98,
            keep=lambda i, piece: i % 3 != 0, **identity,
        ),
        sentence_piece(
            "unigram with rules", texts, model_type="unigram", vocab_size=400, character_coverage=0.98, rules=RULES,
            user_defined_symbols=["<sep>", "USER", "<s>"], bos_id=-1,
        ),
        sentence_piece(
            "unigram with bytes", texts, model_type="unigram", vocab_size=600, byte_fallback=True, remove_extra_whitespaces=False,
            character_coverage=0.98, split_by_whitespace=False, allow_whitespace_only_pieces=True,
            keep=lambda i, piece: i % 7 != 0, **identity,
        ),
    ]
    if arguments.nfkc:
        vocabularies.append(
            sentence_piece("unigram with nfkc", texts, model_type="unigram", vocab_size=400, normalization_rule_name="nmt_nfkc")
        )
    rows = [json.dumps(vocabulary, ensure_ascii=False, separators=(",", ":")) for vocabulary in vocabularies]
    text = '{"texts":' + json.dumps(texts, separators=(",", ":")) + ',\n"vocabularies":[\n' + ",\n".join(rows) + "\n]}\n"
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(text, encoding="utf-8")
    print(f"{len(texts)} texts, {len(vocabularies)} vocabularies, {len(text.encode())} bytes")


if __name__ == "__main__":
    main()
