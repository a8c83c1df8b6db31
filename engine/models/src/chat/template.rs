//! Compiling and rendering the template of a file.

use std::{fmt, sync::Arc, time::SystemTime};

use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value, syntax::SyntaxConfig};

use super::{ChatError, Message, functions, guard, weigh};
use crate::{
    gguf::{Metadata, OptionalKey, excerpt},
    tokenizer::Tokenizer,
};

/// The metadata key of the template.
pub const CHAT_TEMPLATE_KEY: &str = "tokenizer.chat_template";

/// Longer templates are refused.
pub const TEMPLATE_LIMIT_BYTES: usize = 1 << 20;

/// Steps, or 64 bytes of text each, that a template may take whatever the messages are.
const BASE_FUEL: u64 = 200_000;

/// As many for every message.
const MESSAGE_FUEL: u64 = 2_000;

/// As many for every byte of the messages: texts are copied a few times.
const BYTE_FUEL: u64 = 1;

/// More than this no conversation needs.
const MAX_FUEL: u64 = 20_000_000;

/// Nested calls of macros cost about ten of these.
const RECURSION_LIMIT: usize = 300;

const NAME: &str = "chat_template";

const BOS: &str = "bos_token";

const EOS: &str = "eos_token";

/// The template of a model, ready to render.
///
/// ```
/// use entensor_models::chat::{ChatTemplate, Message, Role};
///
/// let source = "{% for message in messages %}[{{ message.role }}] {{ message.content }}\n{% endfor %}";
/// let template = ChatTemplate::new(source)?;
/// let messages = [Message::new(Role::User, "Hello"), Message::new(Role::Assistant, "Hi!")];
/// assert_eq!(template.render(&messages, false)?, "[user] Hello\n[assistant] Hi!\n");
/// # Ok::<(), entensor_models::chat::ChatError>(())
/// ```
#[derive(Clone)]
pub struct ChatTemplate {
    environment: Arc<Environment<'static>>,
    source: Arc<str>,
    special: SpecialTexts,
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate")
            .field("source", &self.source)
            .field("special", &self.special)
            .finish_non_exhaustive()
    }
}

/// Texts of tokens that templates write, by the names of variables.
type SpecialTexts = Vec<(&'static str, String)>;

impl ChatTemplate {
    /// The template of a file, for its tokenizer.
    ///
    /// # Errors
    /// [`ChatError::NoTemplate`], or as [`new`](Self::new).
    pub fn from_metadata(metadata: &Metadata, tokenizer: &Tokenizer) -> Result<Self, ChatError> {
        let source = metadata.get_str(CHAT_TEMPLATE_KEY).optional()?.ok_or(ChatError::NoTemplate)?;
        let ids = [
            (BOS, tokenizer.bos()),
            (EOS, tokenizer.eos()),
            ("unk_token", tokenizer.unknown()),
            ("pad_token", tokenizer.padding()),
        ];
        // What the vocabulary does not have is undefined, and nothing in the text.
        let text = |(name, id): (_, Option<u32>)| Some((name, tokenizer.token_spelling(id?)?.to_owned()));
        Ok(Self { special: ids.into_iter().filter_map(text).collect(), ..Self::new(source)? })
    }

    /// A template, without texts for special tokens.
    ///
    /// # Errors
    /// [`ChatError::TooLong`] or [`ChatError::Syntax`].
    pub fn new(source: &str) -> Result<Self, ChatError> {
        if source.len() > TEMPLATE_LIMIT_BYTES {
            return Err(ChatError::TooLong { length_bytes: source.len(), limit: TEMPLATE_LIMIT_BYTES });
        }
        let environment = on_thread(BASE_FUEL, || environment(source))??;
        Ok(Self { environment: Arc::new(environment), source: source.into(), special: SpecialTexts::new() })
    }

    /// The same template with other texts for `bos_token` and `eos_token`.
    #[must_use]
    pub fn with_special_tokens(self, bos: &str, eos: &str) -> Self {
        let mut special = self.special;
        special.retain(|(name, _)| ![BOS, EOS].contains(name));
        special.extend([(BOS, bos.to_owned()), (EOS, eos.to_owned())]);
        Self { special, ..self }
    }

    /// The same template with a clock that stands still: what `strftime_now` tells, in UTC.
    #[must_use]
    pub fn with_time(self, time: SystemTime) -> Self {
        let mut environment = (*self.environment).clone();
        functions::set_clock(&mut environment, Some(time));
        Self { environment: Arc::new(environment), ..self }
    }

    /// The template as it is written.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The text of these messages. With `add_generation_prompt`, the beginning of the model's answer is behind it.
    ///
    /// # Errors
    /// What the template does wrong, or [`ChatError::Refused`] where it refuses the messages.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String, ChatError> {
        let contents: Vec<&str> = messages.iter().map(|message| message.content.as_str()).collect();
        self.render_with(messages, &contents, add_generation_prompt)
    }

    /// As [`render`](Self::render), with these texts in the place of the messages' own.
    pub(super) fn render_with(
        &self,
        messages: &[Message],
        contents: &[&str],
        add_generation_prompt: bool,
    ) -> Result<String, ChatError> {
        let fields = messages.iter().zip(contents).map(|(message, content)| {
            Value::from_pairs([("role", Value::from(message.role.name())), ("content", Value::from(*content))])
        });
        let variables = [
            ("messages", fields.collect()),
            ("add_generation_prompt", Value::from(add_generation_prompt)),
            ("tools", Value::from(())),
            ("documents", Value::from(())),
        ];
        let special = self.special.iter().map(|(name, text)| (*name, Value::from(text.as_str())));
        let context = Value::from_pairs(variables.into_iter().chain(special));
        let bytes: u64 = contents.iter().map(|content| content.len() as u64).sum();
        let fuel = BASE_FUEL
            .saturating_add(MESSAGE_FUEL.saturating_mul(messages.len() as u64))
            .saturating_add(BYTE_FUEL.saturating_mul(bytes))
            .min(MAX_FUEL);
        let mut environment = (*self.environment).clone();
        environment.set_fuel(Some(fuel));
        on_thread(fuel, || {
            let template = environment.get_template(NAME).map_err(|error| render_error(&error))?;
            template.render(context).map_err(|error| render_error(&error))
        })?
    }
}

fn environment(source: &str) -> Result<Environment<'static>, ChatError> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.map_err(|error| syntax_error(&error))?);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_recursion_limit(RECURSION_LIMIT);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    weigh::add(&mut environment);
    functions::add(&mut environment);
    let source = guard::guarded(&functions::without_training_marks(source))?;
    environment.add_template_owned(NAME, source).map_err(|error| syntax_error(&error))?;
    Ok(environment)
}

/// Runs what a template makes deep: values in values in values are dropped and printed by recursion. Every level costs fuel, so
/// that a stack in proportion to it is enough. Only what is used of it takes memory.
fn on_thread<T: Send>(fuel: u64, run: impl FnOnce() -> T + Send) -> Result<T, ChatError> {
    const BYTES_PER_FUEL: u64 = 256;
    let stack = usize::try_from(fuel.saturating_mul(BYTES_PER_FUEL)).unwrap_or(usize::MAX);
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().name("chat template".into()).stack_size(stack);
        let thread = builder.spawn_scoped(scope, run).map_err(ChatError::Thread)?;
        match thread.join() {
            Ok(value) => Ok(value),
            Err(_) => Err(ChatError::Engine),
        }
    })
}

fn syntax_error(error: &Error) -> ChatError {
    ChatError::Syntax { line: error.line().unwrap_or(1), reason: reason(error) }
}

fn render_error(error: &Error) -> ChatError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(inner) = cause {
        if let Some(refused) = inner.downcast_ref::<functions::Refused>() {
            return ChatError::Refused { message: excerpt(&refused.0) };
        }
        if inner.downcast_ref::<Error>().is_some_and(|error| error.kind() == ErrorKind::OutOfFuel) {
            return ChatError::TooMuchWork;
        }
        cause = inner.source();
    }
    ChatError::Render { line: error.line().unwrap_or(1), reason: reason(error) }
}

/// What is wrong, without the place, which the messages of this crate have themselves.
fn reason(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()).chars().take(300).collect(),
        None => error.kind().to_string(),
    }
}
