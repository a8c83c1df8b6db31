//! What can be wrong with a vocabulary, or with text and ids given to it.

use super::{SUPPORTED_MODELS, SUPPORTED_PRE_TOKENIZERS, keys};
use crate::gguf::GgufError;

/// Why a tokenizer could not be built, or could not encode or decode.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The metadata lack a key, or it has the wrong type.
    #[error("the vocabulary is incomplete: {0}")]
    Metadata(#[from] GgufError),
    /// A kind of tokenizer that is not implemented.
    #[error(
        "{} is {found:?}, which is not supported (supported: {}); use a model whose tokenizer is one of these",
        keys::MODEL,
        SUPPORTED_MODELS.join(", ")
    )]
    UnsupportedModel {
        /// The value of `tokenizer.ggml.model`.
        found: String,
    },
    /// A way of splitting text that is not implemented.
    #[error(
        "{} is {found:?}, which is not supported (supported: {}); {}",
        keys::PRE,
        SUPPORTED_PRE_TOKENIZERS.join(", "),
        pre_tokenizer_hint(.found)
    )]
    UnsupportedPreTokenizer {
        /// The value of `tokenizer.ggml.pre`.
        found: String,
    },
    /// A vocabulary of no tokens, or of more than ids can number.
    #[error(
        "{} has {tokens} tokens; 1 to {limit} are allowed; the file is damaged, fetch or convert it again",
        keys::TOKENS
    )]
    VocabularySize {
        /// The number of tokens.
        tokens: usize,
        /// The most tokens.
        limit: u32,
    },
    /// An array that must have one element per token has another length.
    #[error(
        "{key} has {found} elements, but the vocabulary has {expected} tokens; the file is damaged, convert the model again"
    )]
    LengthMismatch {
        /// The metadata key.
        key: &'static str,
        /// The number of tokens.
        expected: usize,
        /// The length of the array.
        found: usize,
    },
    /// A token type that the format does not define.
    #[error(
        "{} says {found} for token {token}, which is no type of tokens (0 to 6); convert the model again",
        keys::TOKEN_TYPE
    )]
    UnknownTokenType {
        /// The token's id.
        token: u32,
        /// The type in the file.
        found: i128,
    },
    /// Two tokens with one text.
    #[error(
        "tokens {first} and {second} of {} have the same text {text:?}; rename or remove one of them",
        keys::TOKENS
    )]
    DuplicateToken {
        /// The text, shortened.
        text: String,
        /// The lower id.
        first: u32,
        /// The higher id.
        second: u32,
    },
    /// A merge that is not two texts with a space between them.
    #[error(
        "merge {index} of {} is {merge:?}, not two tokens separated by a space; convert the model again",
        keys::MERGES
    )]
    MalformedMerge {
        /// The position in the list of merges.
        index: usize,
        /// The merge, shortened.
        merge: String,
    },
    /// A merge of, or into, a token that the vocabulary does not have.
    #[error(
        "merge {index} of {} ({merge:?}) needs the token {token:?}, which the vocabulary does not have; convert the model again",
        keys::MERGES
    )]
    MergeUnknownToken {
        /// The position in the list of merges.
        index: usize,
        /// The merge, shortened.
        merge: String,
        /// The missing token's text, shortened.
        token: String,
    },
    /// More merges than ranks can number.
    #[error(
        "{} has {merges} merges; at most {limit} are allowed; the file is damaged, fetch or convert it again",
        keys::MERGES
    )]
    TooManyMerges {
        /// The number of merges.
        merges: usize,
        /// The most merges.
        limit: u32,
    },
    /// A special id that names no token.
    #[error(
        "{key} is {id}, but the vocabulary has {tokens} tokens; set it to one of them, or remove it if there is none"
    )]
    SpecialOutOfRange {
        /// The metadata key.
        key: &'static str,
        /// The id in the file.
        id: u32,
        /// The number of tokens.
        tokens: u32,
    },
    /// A score that is infinite or no number.
    #[error("{} says {score} for token {token}; scores must be finite; convert the model again", keys::SCORES)]
    ScoreNotFinite {
        /// The token's id.
        token: u32,
        /// The score in the file.
        score: f64,
    },
    /// A byte token whose text names no byte.
    #[error(
        "token {token} of {} is a byte token, but its text is {text:?}, not one of <0x00> to <0xFF>; convert the model \
         again",
        keys::TOKENS
    )]
    MalformedByteToken {
        /// The token's id.
        token: u32,
        /// The text, shortened.
        text: String,
    },
    /// Byte tokens that leave bytes out.
    #[error(
        "{} has byte tokens, but none for the byte 0x{byte:02x}; all 256 are needed, or none and an unknown token; convert \
         the model again",
        keys::TOKENS
    )]
    MissingByteToken {
        /// The first byte without a token.
        byte: u8,
    },
    /// Text that no token stands for could not be encoded.
    #[error(
        "the vocabulary has neither byte tokens nor an unknown token, so that not every text could be encoded; set {} to \
         the token for unknown text",
        keys::UNKNOWN
    )]
    NoUnknownToken,
    /// A table of rewritten characters that cannot be read.
    #[error("{} cannot be used: {fault}; the file is damaged, convert the model again", keys::CHARSMAP)]
    MalformedCharsMap {
        /// What is wrong with it.
        fault: &'static str,
    },
    /// The special tokens are too many or too long to search for.
    #[error("the special tokens cannot be searched for: {0}; use a vocabulary with fewer or shorter ones")]
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
    #[error("token id {id} is out of range: the vocabulary has {tokens} tokens; decode ids of this model only")]
    UnknownId {
        /// The id.
        id: u32,
        /// The number of tokens.
        tokens: u32,
    },
}

/// What to do about a way of splitting that is not known.
fn pre_tokenizer_hint(found: &str) -> &'static str {
    match found {
        // What converters write when they do not know.
        "default" => {
            "the converter did not recognise how the model splits text: convert it with a newer one, or set the key"
        }
        _ => "use a model that splits text in one of these ways",
    }
}
