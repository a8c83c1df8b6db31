//! A chat turn by turn: what of it a session has seen, and what it must be fed.

use super::{ChatError, ChatTemplate, Message, Role};
use crate::tokenizer::Tokenizer;

/// What a session must be fed for the next answer: forget every token from `keep` on
/// ([`Session::truncate`](crate::Session::truncate)), then feed `feed`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Tokens of the session that stay.
    pub keep: u32,
    /// Tokens to feed; there is always one.
    pub feed: Vec<u32>,
}

/// The messages of a chat, and the tokens of it that a session has seen.
///
/// Every turn is fed as the template writes the whole chat; only what the session has not seen is new. Where the template keeps an
/// answer as it was given, the tokens that the model picked stay. Where it changes earlier text, tokens are forgotten from there on.
#[derive(Clone, Debug)]
pub struct Conversation {
    template: ChatTemplate,
    tokenizer: Tokenizer,
    messages: Vec<Message>,
    /// What the session has seen.
    seen: Vec<u32>,
    /// What it is to be fed for the answer that is awaited.
    feed: Vec<u32>,
    /// Tokens of the last answer that it has not seen.
    unseen: Vec<u32>,
    /// The text of `seen` and `unseen`, if they are all of it.
    text: Option<String>,
}

impl Conversation {
    /// A chat, for a session that has seen nothing.
    #[must_use]
    pub fn new(template: ChatTemplate, tokenizer: Tokenizer, system: Option<&str>) -> Self {
        let messages = system.map(|text| Message::new(Role::System, text)).into_iter().collect();
        let (seen, feed, unseen) = Default::default();
        Self { template, tokenizer, messages, seen, feed, unseen, text: None }
    }

    /// The messages so far.
    #[must_use]
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// The user says something. On an error nothing was said.
    ///
    /// # Errors
    /// As [`ChatTemplate::encode`].
    pub fn ask(&mut self, content: &str) -> Result<Turn, ChatError> {
        self.messages.push(Message::new(Role::User, content));
        let turn = self.turn();
        if turn.is_err() {
            self.messages.pop();
        }
        turn
    }

    fn turn(&mut self) -> Result<Turn, ChatError> {
        let guarded = self.template.render_guarded(&self.tokenizer, &self.messages, true)?;
        // A token that the template writes ends the answer: the picked tokens before it are what they would be anyway.
        let known = self.text.as_ref().filter(|text| guarded.plain.starts_with(text.as_str())).map(String::len);
        let known = match known {
            Some(length) if guarded.begins_with_control(&self.tokenizer, length)? => Some(length),
            _ => None,
        };
        let (keep, feed) = match known {
            Some(length) => {
                let mut feed = self.unseen.clone();
                feed.extend(guarded.encode(&self.tokenizer, length)?);
                (self.seen.len(), feed)
            }
            None => {
                let mut ids = guarded.encode(&self.tokenizer, 0)?;
                let same = self.seen.iter().zip(&ids).take_while(|(a, b)| a == b).count();
                // The last one is fed again for its logits.
                let keep = same.min(ids.len().saturating_sub(1));
                (keep, ids.split_off(keep))
            }
        };
        self.seen.truncate(keep);
        self.unseen.clear();
        self.feed.clone_from(&feed);
        self.text = Some(guarded.plain);
        // Sessions count in 32 bits and have seen all of these.
        Ok(Turn { keep: u32::try_from(keep).unwrap_or(u32::MAX), feed })
    }

    /// The model has answered: `content` is the text, `picked` are the tokens that it picked without the one that ends the
    /// answer, and the first `fed` of them have been fed to the session.
    pub fn answer(&mut self, content: &str, picked: &[u32], fed: usize) {
        let (fed, unseen) = picked.split_at(fed.min(picked.len()));
        self.seen.append(&mut self.feed);
        self.seen.extend_from_slice(fed);
        self.unseen = unseen.to_vec();
        // Where a stop string cut the answer, the tokens are more than its text.
        let is_all = self.tokenizer.decode(picked).is_ok_and(|text| text == content);
        self.text = self.text.take().filter(|_| is_all).map(|text| text + content);
        self.messages.push(Message::new(Role::Assistant, content));
    }

    /// Takes back what was asked, after feeding the session or generating has failed.
    pub fn retract(&mut self) {
        if self.messages.last().is_some_and(|message| message.role == Role::User) {
            self.messages.pop();
        }
        // The session has seen what stayed, and perhaps a part of the rest, which is forgotten next time.
        self.feed.clear();
        self.unseen.clear();
        self.text = None;
    }
}
