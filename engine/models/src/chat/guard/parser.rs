//! The expressions and statements of chat templates, read for their operands.

use super::{
    super::ChatError,
    BEHIND,
    lex::{Kind, Token, error},
};

/// Expressions in expressions; real templates have a few.
const MAX_DEPTH: u32 = 60;

/// Reads one block and says where what is put in.
pub(super) struct Parser<'a, 'i> {
    pub(super) source: &'a str,
    pub(super) tokens: &'i [Token<'a>],
    pub(super) at: usize,
    /// Behind the block.
    pub(super) end: usize,
    pub(super) depth: u32,
    pub(super) inserts: &'i mut Vec<(usize, &'static str)>,
}

type Parsed = Result<(), ChatError>;

impl<'a> Parser<'a, '_> {
    pub(super) fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).copied()
    }

    /// Whether the next token is this name or symbol.
    pub(super) fn peek_is(&self, text: &str) -> bool {
        self.peek().is_some_and(|token| matches!(token.kind, Kind::Name | Kind::Symbol) && token.text == text)
    }

    fn take(&mut self, text: &str) -> bool {
        let found = self.peek_is(text);
        self.at += usize::from(found);
        found
    }

    fn take_any(&mut self, texts: &[&str]) -> bool {
        texts.iter().any(|text| self.take(text))
    }

    fn expect(&mut self, text: &'static str) -> Parsed {
        if self.take(text) { Ok(()) } else { Err(self.error(&format!("`{text}` is missing"))) }
    }

    fn name(&mut self) -> Result<&'a str, ChatError> {
        match self.peek() {
            Some(token) if token.kind == Kind::Name => {
                self.at += 1;
                Ok(token.text)
            }
            _ => Err(self.error("a name is missing")),
        }
    }

    pub(super) fn error(&self, reason: &str) -> ChatError {
        error(self.source, self.peek().map_or(self.end, |token| token.start), reason)
    }

    /// Where the next token begins.
    fn start(&self) -> usize {
        self.peek().map_or(self.end, |token| token.start)
    }

    /// Where the last token ended.
    fn behind(&self) -> usize {
        self.at.checked_sub(1).and_then(|last| self.tokens.get(last)).map_or(0, Token::end)
    }

    /// Weighs everything since `start`.
    fn weigh_from(&mut self, start: usize) {
        self.inserts.push((start, "("));
        self.inserts.push((self.behind(), "|__w)"));
    }

    fn deeper(&mut self, parse: impl FnOnce(&mut Self) -> Parsed) -> Parsed {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.error("expressions are nested too deeply"));
        }
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    pub(super) fn statement(&mut self) -> Parsed {
        match self.name()? {
            "if" | "elif" | "autoescape" => self.expression(),
            "for" => {
                self.targets()?;
                self.expect("in")?;
                self.tuple(false)?;
                if self.take("if") {
                    self.expression()?;
                }
                self.take("recursive");
                Ok(())
            }
            "set" => {
                self.targets()?;
                if self.take("=") { self.tuple(true) } else { self.filters() }
            }
            "with" => {
                while self.peek().is_some() {
                    self.targets()?;
                    self.expect("=")?;
                    self.expression()?;
                    self.take(",");
                }
                Ok(())
            }
            "macro" => {
                self.name()?;
                self.parameters()
            }
            "call" => {
                if self.peek_is("(") {
                    self.parameters()?;
                }
                self.call()
            }
            "do" => self.call(),
            "filter" => self.filter().and_then(|()| self.filters()),
            "else" | "endif" | "endfor" | "endset" | "endwith" | "endmacro" | "endcall" | "endfilter"
            | "endautoescape" | "break" | "continue" => {
                // An end may repeat the name of what it ends.
                if self.peek().is_some_and(|token| token.kind == Kind::Name) {
                    self.at += 1;
                }
                Ok(())
            }
            other => {
                self.at -= 1;
                Err(self.error(&format!("`{other}` is no statement of chat templates")))
            }
        }
    }

    /// What is assigned to: names, attributes, and lists of them.
    fn targets(&mut self) -> Parsed {
        loop {
            if self.take("(") {
                self.deeper(Self::targets)?;
                self.expect(")")?;
            } else {
                self.name()?;
                while self.take(".") {
                    self.name()?;
                }
            }
            if !self.take(",") || self.peek_is("in") || self.peek_is("=") || self.peek_is(")") {
                return Ok(());
            }
            // In `with a=1, b=2` the comma is none of these.
            if self.tokens.get(self.at + 1).is_some_and(|token| token.text == "=") && self.peek_is("=") {
                return Ok(());
            }
        }
    }

    /// Parameters of a macro, with defaults.
    fn parameters(&mut self) -> Parsed {
        self.expect("(")?;
        while !self.take(")") {
            self.name()?;
            if self.take("=") {
                self.expression()?;
            }
            if !self.take(",") && !self.peek_is(")") {
                return Err(self.error("`)` is missing"));
            }
        }
        Ok(())
    }

    /// A call that is no operand.
    fn call(&mut self) -> Parsed {
        self.name()?;
        self.postfix()
    }

    /// Expressions with commas between, as tuples without parentheses.
    pub(super) fn tuple(&mut self, conditional: bool) -> Parsed {
        loop {
            if conditional {
                self.expression()?;
            } else {
                self.deeper(Self::either)?;
            }
            if !self.take(",") || self.peek().is_none() {
                return Ok(());
            }
        }
    }

    fn expression(&mut self) -> Parsed {
        self.deeper(|parser| {
            parser.either()?;
            while parser.take("if") {
                parser.either()?;
                if parser.take("else") {
                    parser.expression()?;
                }
            }
            Ok(())
        })
    }

    fn either(&mut self) -> Parsed {
        self.negation()?;
        while self.take_any(&["or", "and"]) {
            self.negation()?;
        }
        Ok(())
    }

    fn negation(&mut self) -> Parsed {
        while self.take("not") {}
        self.sum()?;
        loop {
            let negated = self.peek_is("not") && self.tokens.get(self.at + 1).is_some_and(|token| token.text == "in");
            self.at += usize::from(negated);
            if !self.take_any(&["==", "!=", "<", ">", "<=", ">=", "in"]) {
                return Ok(());
            }
            self.sum()?;
        }
    }

    /// Sums and joined texts: their operands are weighed, so that they are as small as those together.
    fn sum(&mut self) -> Parsed {
        self.product()?;
        while self.take_any(&["+", "-", "~"]) {
            self.product()?;
        }
        Ok(())
    }

    /// Products are weighed as a whole: a list times a number holds everything that often.
    fn product(&mut self) -> Parsed {
        let start = self.start();
        let mut is_product = false;
        self.unary()?;
        while self.take_any(&["*", "/", "//", "%", "**"]) {
            is_product = true;
            self.unary()?;
        }
        if is_product {
            self.weigh_from(start);
        }
        Ok(())
    }

    fn unary(&mut self) -> Parsed {
        while self.take_any(&["-", "+"]) {}
        let start = self.start();
        let is_constant = self.primary()?;
        let plain = self.behind();
        self.postfix()?;
        if !is_constant || self.behind() != plain {
            self.weigh_from(start);
        }
        self.filters()
    }

    /// Gives whether it is a constant.
    fn primary(&mut self) -> Result<bool, ChatError> {
        let Some(token) = self.peek() else { return Err(self.error("an expression is missing")) };
        match (token.kind, token.text) {
            (Kind::Name, name) => {
                if ["and", "or", "in", "is", "if", "else"].contains(&name) {
                    return Err(self.error("an expression is missing"));
                }
                self.at += 1;
                Ok(["true", "false", "none", "True", "False", "None"].contains(&name))
            }
            (Kind::Number, _) => {
                self.at += 1;
                Ok(true)
            }
            (Kind::Text, _) => {
                // Strings beside each other are one.
                while self.peek().is_some_and(|token| token.kind == Kind::Text) {
                    self.at += 1;
                }
                Ok(true)
            }
            (Kind::Symbol, "(" | "[") => {
                self.at += 1;
                let close = if token.text == "(" { ")" } else { "]" };
                while !self.take(close) {
                    self.expression()?;
                    if !self.take(",") && !self.peek_is(close) {
                        return Err(self.error("a bracket is not closed"));
                    }
                }
                Ok(false)
            }
            (Kind::Symbol, "{") => {
                self.at += 1;
                while !self.take("}") {
                    self.expression()?;
                    self.expect(":")?;
                    self.expression()?;
                    if !self.take(",") && !self.peek_is("}") {
                        return Err(self.error("a bracket is not closed"));
                    }
                }
                Ok(false)
            }
            _ => Err(self.error("an expression is missing")),
        }
    }

    /// Attributes, subscripts and calls.
    fn postfix(&mut self) -> Parsed {
        loop {
            if self.take(".") {
                match self.peek() {
                    Some(token) if matches!(token.kind, Kind::Name | Kind::Number) => self.at += 1,
                    _ => return Err(self.error("a name is missing")),
                }
            } else if self.take("[") {
                while !self.take("]") {
                    if self.take(":") {
                        continue;
                    }
                    self.expression()?;
                    if !self.peek_is(":") && !self.peek_is("]") && !self.take(",") {
                        return Err(self.error("a bracket is not closed"));
                    }
                }
            } else if self.peek_is("(") {
                self.arguments()?;
            } else {
                return Ok(());
            }
        }
    }

    fn arguments(&mut self) -> Parsed {
        self.expect("(")?;
        while !self.take(")") {
            let is_named = self.peek().is_some_and(|token| token.kind == Kind::Name)
                && self.tokens.get(self.at + 1).is_some_and(|token| token.kind == Kind::Symbol && token.text == "=");
            if is_named {
                self.at += 2;
            } else {
                self.take_any(&["*", "**"]);
            }
            self.expression()?;
            if !self.take(",") && !self.peek_is(")") {
                return Err(self.error("`)` is missing"));
            }
        }
        Ok(())
    }

    /// Filters and tests behind an operand.
    fn filters(&mut self) -> Parsed {
        loop {
            if self.take("|") {
                self.filter()?;
                self.inserts.push((self.behind(), BEHIND));
            } else if self.take("is") {
                self.take("not");
                self.name()?;
                self.test_argument()?;
            } else {
                return Ok(());
            }
        }
    }

    fn filter(&mut self) -> Parsed {
        self.name()?;
        while self.take(".") {
            self.name()?;
        }
        if self.peek_is("(") { self.arguments() } else { Ok(()) }
    }

    /// Tests take arguments in parentheses, or one operand without.
    fn test_argument(&mut self) -> Parsed {
        const NO_OPERAND: [&str; 7] = ["and", "or", "not", "if", "else", "is", "in"];
        let Some(token) = self.peek() else { return Ok(()) };
        let is_operand = match token.kind {
            Kind::Name => !NO_OPERAND.contains(&token.text) && token.text != "recursive",
            Kind::Text | Kind::Number => true,
            Kind::Symbol => ["[", "{"].contains(&token.text),
        };
        if token.text == "(" && token.kind == Kind::Symbol {
            return self.arguments();
        }
        if is_operand {
            let start = self.start();
            self.primary()?;
            self.postfix()?;
            self.weigh_from(start);
        }
        Ok(())
    }
}
