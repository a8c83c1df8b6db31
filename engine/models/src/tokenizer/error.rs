//! What can be wrong with a vocabulary, or with text and ids given to it.

use super::{SUPPORTED_MODELS, SUPPORTED_PRE_TOKENIZERS};
use crate::gguf::GgufError;

/// Why a tokenizer could not be built, or could not encode or decode.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The metadata lack a key, or it has the wrong type.
    #[error("the vocabulary is incomplete: {0}")]
    Metadata(#[from] GgufError),
    /// A kind of tokenizer that is not implemented.
    #[error("tokenizer model {found:?} is not supported (supported: {})", SUPPORTED_MODELS.join(", "))]
    UnsupportedModel {
        /// The value of `tokenizer.ggml.model`.
        found: String,
    },
    /// A way of splitting text that is not implemented.
    #[error("pre-tokenizer {found:?} is not supported (supported: {})", SUPPORTED_PRE_TOKENIZERS.join(", "))]
    UnsupportedPreTokenizer {
        /// The value of `tokenizer.ggml.pre`.
        found: String,
    },
    /// A vocabulary of no tokens, or of more than ids can number.
    #[error("the vocabulary has {tokens} tokens; 1 to {limit} are allowed")]
    VocabularySize {
        /// The number of tokens.
        tokens: usize,
        /// The most tokens.
        limit: u32,
    },
    /// An array that must have one element per token has another length.
    #[error("{key} has {found} elements, the vocabulary has {expected} tokens")]
    LengthMismatch {
        /// The metadata key.
        key: &'static str,
        /// The number of tokens.
        expected: usize,
        /// The length of the array.
        found: usize,
    },
    /// A token type that the format does not define.
    #[error("token {token} has the unknown type {found}")]
    UnknownTokenType {
        /// The token's id.
        token: u32,
        /// The type in the file.
        found: i128,
    },
    /// Two tokens with one text.
    #[error("tokens {first} and {second} have the same text {text:?}")]
    DuplicateToken {
        /// The text, shortened.
        text: String,
        /// The lower id.
        first: u32,
        /// The higher id.
        second: u32,
    },
    /// A merge that is not two texts with a space between them.
    #[error("merge {index} is {merge:?}, not two tokens separated by a space")]
    MalformedMerge {
        /// The position in the list of merges.
        index: usize,
        /// The merge, shortened.
        merge: String,
    },
    /// A merge of, or into, a token that the vocabulary does not have.
    #[error("merge {index} ({merge:?}) needs the token {token:?}, which the vocabulary does not have")]
    MergeUnknownToken {
        /// The position in the list of merges.
        index: usize,
        /// The merge, shortened.
        merge: String,
        /// The missing token's text, shortened.
        token: String,
    },
    /// More merges than ranks can number.
    #[error("the vocabulary has {merges} merges; at most {limit} are allowed")]
    TooManyMerges {
        /// The number of merges.
        merges: usize,
        /// The most merges.
        limit: u32,
    },
    /// A special id that names no token.
    #[error("{key} is {id}, but the vocabulary has {tokens} tokens")]
    SpecialOutOfRange {
        /// The metadata key.
        key: &'static str,
        /// The id in the file.
        id: u32,
        /// The number of tokens.
        tokens: u32,
    },
    /// The special tokens are too many or too long to search for.
    #[error("the special tokens cannot be searched for: {0}")]
    SpecialTokens(#[from] aho_corasick::BuildError),

    /// Text with a byte that no token stands for.
    #[error(
        "byte 0x{byte:02x} at offset {offset_bytes} of the text has no token in this vocabulary; remove it, or build the \
         tokenizer with `MissingBytes::Skip`"
    )]
    MissingByte {
        /// The byte.
        byte: u8,
        /// Where in the text it stands.
        offset_bytes: usize,
    },
    /// A text that is too long to encode at once.
    #[error("a text of {length_bytes} bytes is too long; encode it in parts of at most {limit} bytes")]
    TextTooLong {
        /// The text's length.
        length_bytes: usize,
        /// The longest text.
        limit: u32,
    },
    /// An id that names no token.
    #[error("token id {id} is out of range: the vocabulary has {tokens} tokens")]
    UnknownId {
        /// The id.
        id: u32,
        /// The number of tokens.
        tokens: u32,
    },
}
