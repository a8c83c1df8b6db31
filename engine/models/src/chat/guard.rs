//! Makes every value of a template pay for its size before anything is done with it.
//!
//! Lists in lists can be small to make and endless to join, to compare or to print, and the engine's fuel does not see it (see
//! [`weigh`](super::weigh)). So the source is rewritten: behind every operand, the filter `__w` is put in, which weighs it and
//! gives it back. `a.b ~ c[0] | upper` becomes `(a.b|__w) ~ (c[0]|__w) | upper|__w`.
//!
//! The parser knows all expressions and the statements of chat templates; what it does not know is an error, since it would go
//! unweighed. It puts nothing in that has a newline, so that line numbers stay.

use super::ChatError;

/// The filter that weighs.
pub(super) const FILTER: &str = "__w";

const BEHIND: &str = "|__w";

/// Expressions in expressions; real templates have a few.
const MAX_DEPTH: u32 = 60;

/// Names, strings and symbols in one block: chains of them are compiled by recursion. Real templates have some hundreds.
const MAX_TOKENS: usize = 4096;

/// The source with every operand weighed.
pub(super) fn guarded(source: &str) -> Result<String, ChatError> {
    let mut inserts = Vec::new();
    let mut at = 0;
    while let Some(start) = find(source, at, "{").filter(|&start| start + 1 < source.len()) {
        let behind = start + 2;
        at = match source.as_bytes()[start + 1] {
            b'{' => block(source, behind, "}}", &mut inserts)?.0,
            b'%' => {
                let (end, is_raw) = block(source, behind, "%}", &mut inserts)?;
                if is_raw { end_of_raw(source, end) } else { end }
            }
            b'#' => find(source, behind, "#}").map_or(source.len(), |end| end + 2),
            _ => start + 1,
        };
    }
    // Stable: what was put in at one place stays in its order.
    inserts.sort_by_key(|&(at, _)| at);
    let mut out = String::with_capacity(source.len() + inserts.len() * BEHIND.len());
    let mut done = 0;
    for (at, text) in inserts {
        out.push_str(&source[done..at]);
        out.push_str(text);
        done = at;
    }
    out.push_str(&source[done..]);
    Ok(out)
}

fn find(source: &str, from: usize, wanted: &str) -> Option<usize> {
    Some(from + source.get(from..)?.find(wanted)?)
}

/// Behind `{% endraw %}`.
fn end_of_raw(source: &str, from: usize) -> usize {
    let mut at = from;
    while let Some(start) = find(source, at, "{%") {
        let Some(end) = find(source, start + 2, "%}") else { break };
        if source[start + 2..end].trim_matches(['-', '+']).trim() == "endraw" {
            return end + 2;
        }
        at = start + 2;
    }
    source.len()
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Name,
    Text,
    Number,
    Symbol,
}

#[derive(Clone, Copy, Debug)]
struct Token<'a> {
    kind: Kind,
    text: &'a str,
    start: usize,
}

impl Token<'_> {
    fn end(&self) -> usize {
        self.start + self.text.len()
    }
}

/// Rewrites one `{{ … }}` or `{% … %}` and gives the place behind it, and whether it begins raw text.
fn block(
    source: &str,
    start: usize,
    close: &str,
    inserts: &mut Vec<(usize, &'static str)>,
) -> Result<(usize, bool), ChatError> {
    let (tokens, end) = tokens(source, start, close)?;
    let mut parser = Parser { source, tokens: &tokens, at: 0, end, depth: 0, inserts };
    let is_raw = close == "%}" && parser.peek_is("raw");
    match close {
        "%}" if is_raw => {}
        "%}" => parser.statement()?,
        _ => parser.tuple(true)?,
    }
    match parser.peek() {
        Some(_) if !is_raw => Err(parser.error("this is not expected here")),
        _ => Ok((end, is_raw)),
    }
}

/// The tokens up to the end of a block, and the place behind it.
fn tokens<'a>(source: &'a str, start: usize, close: &str) -> Result<(Vec<Token<'a>>, usize), ChatError> {
    const LONG: [&str; 6] = ["**", "//", "==", "!=", "<=", ">="];
    let mut tokens = Vec::new();
    let mut at = start;
    // A mark for the spaces before the block.
    if source[at..].starts_with(['-', '+']) {
        at += 1;
    }
    let mut open = 0_usize;
    loop {
        let rest = &source[at..];
        let trimmed = rest.trim_start();
        at += rest.len() - trimmed.len();
        let rest = trimmed;
        let Some(first) = rest.chars().next() else {
            return Err(error(source, at, "a block is not closed"));
        };
        // Inside braces, `}}` closes two dictionaries.
        if open == 0 {
            let unmarked = rest.strip_prefix(['-', '+']).unwrap_or(rest);
            if let Some(behind) = unmarked.strip_prefix(close).or_else(|| rest.strip_prefix(close)) {
                return Ok((tokens, source.len() - behind.len()));
            }
        }
        let (kind, length) = match first {
            '"' | '\'' => {
                let mut escaped = false;
                let end = rest[1..].char_indices().find(|&(_, c)| {
                    let ends = c == first && !escaped;
                    escaped = c == '\\' && !escaped;
                    ends
                });
                let Some((end, _)) = end else { return Err(error(source, at, "a string is not closed")) };
                (Kind::Text, end + 2)
            }
            c if c.is_ascii_digit() => (Kind::Number, number(rest)),
            c if c == '_' || c.is_alphabetic() => {
                let end = rest.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(rest.len());
                (Kind::Name, end)
            }
            c => {
                match c {
                    '{' | '[' | '(' => open += 1,
                    '}' | ']' | ')' => open = open.saturating_sub(1),
                    _ => {}
                }
                let is_long = LONG.iter().any(|symbol| rest.starts_with(symbol));
                (Kind::Symbol, if is_long { 2 } else { c.len_utf8() })
            }
        };
        if tokens.len() == MAX_TOKENS {
            return Err(error(source, at, "a block is too long"));
        }
        tokens.push(Token { kind, text: &rest[..length], start: at });
        at += length;
    }
}

/// The length of a number: digits, a fraction, an exponent, or letters of another base.
fn number(text: &str) -> usize {
    let digits = |text: &str| text.find(|c: char| c != '_' && !c.is_ascii_alphanumeric()).unwrap_or(text.len());
    let whole = digits(text);
    let rest = &text[whole..];
    match rest.strip_prefix('.').filter(|fraction| fraction.starts_with(|c: char| c.is_ascii_digit())) {
        Some(fraction) => whole + 1 + digits(fraction),
        // The sign of an exponent.
        None if text[..whole].ends_with(['e', 'E']) && rest.starts_with(['+', '-']) => whole + 1 + digits(&rest[1..]),
        None => whole,
    }
}

fn error(source: &str, at: usize, reason: &str) -> ChatError {
    let line = source[..at.min(source.len())].matches('\n').count() + 1;
    ChatError::Syntax { line, reason: reason.into() }
}

struct Parser<'a, 'i> {
    source: &'a str,
    tokens: &'i [Token<'a>],
    at: usize,
    /// Behind the block.
    end: usize,
    depth: u32,
    inserts: &'i mut Vec<(usize, &'static str)>,
}

type Parsed = Result<(), ChatError>;

impl<'a> Parser<'a, '_> {
    fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).copied()
    }

    /// Whether the next token is this name or symbol.
    fn peek_is(&self, text: &str) -> bool {
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

    fn error(&self, reason: &str) -> ChatError {
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

    fn statement(&mut self) -> Parsed {
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
    fn tuple(&mut self, conditional: bool) -> Parsed {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operand_is_weighed() {
        for (source, expected) in [
            ("a {{ b }} c", "a {{ (b|__w) }} c"),
            ("{{- a.b[0].c() ~ 'x' -}}", "{{- (a.b[0].c()|__w) ~ 'x' -}}"),
            ("{{ 'a' 'b' }}{{ 1.5e-3 }}{{ none }}", "{{ 'a' 'b' }}{{ 1.5e-3 }}{{ none }}"),
            ("{{ 'a'.upper() }}", "{{ ('a'.upper()|__w) }}"),
            ("{{ a | f | g(b, c=d) }}", "{{ (a|__w) | f|__w | g((b|__w), c=(d|__w))|__w }}"),
            ("{{ [a] * 9 }}", "{{ (([(a|__w)]|__w) * 9|__w) }}"),
            ("{{ -a ** 2 + b }}", "{{ (-(a|__w) ** 2|__w) + (b|__w) }}"),
            ("{{ {'a': {'b': c}}['a'] }}", "{{ ({'a': ({'b': (c|__w)}|__w)}['a']|__w) }}"),
            ("{{ a if b else c }}", "{{ (a|__w) if (b|__w) else (c|__w) }}"),
            (
                "{{ a is not defined and b is divisibleby 3 }}",
                "{{ (a|__w) is not defined and (b|__w) is divisibleby (3|__w) }}",
            ),
            ("{{ a not in b == (c, d) }}", "{{ (a|__w) not in (b|__w) == (((c|__w), (d|__w))|__w) }}"),
            ("{{ a[1:] ~ a[:-1] ~ a[::2] }}", "{{ (a[1:]|__w) ~ (a[:-1]|__w) ~ (a[::2]|__w) }}"),
            ("{{ f(*a, **b) }}", "{{ (f(*(a|__w), **(b|__w))|__w) }}"),
            ("{% set a, b.c = d, e %}", "{% set a, b.c = (d|__w), (e|__w) %}"),
            ("{% set a | upper %}x{% endset %}", "{% set a | upper|__w %}x{% endset %}"),
            (
                "{%- for a, (b, c) in d.items() if a recursive -%}",
                "{%- for a, (b, c) in (d.items()|__w) if (a|__w) recursive -%}",
            ),
            ("{% with a = b, c = d %}{% endwith %}", "{% with a = (b|__w), c = (d|__w) %}{% endwith %}"),
            ("{% macro f(a, b=c) %}{% endmacro f %}", "{% macro f(a, b=(c|__w)) %}{% endmacro f %}"),
            ("{% call(x) f(a) %}{% endcall %}", "{% call(x) f((a|__w)) %}{% endcall %}"),
            ("{% do a.append(b) %}", "{% do a.append((b|__w)) %}"),
            ("{% filter upper %}{{ a }}{% endfilter %}", "{% filter upper %}{{ (a|__w) }}{% endfilter %}"),
            (
                "{# {{ a }} #}{% raw %}{{ b }}{%- endraw -%}{{ c }}",
                "{# {{ a }} #}{% raw %}{{ b }}{%- endraw -%}{{ (c|__w) }}",
            ),
            ("{{ '}}' ~ \"\\\"%}\" ~ a }} {", "{{ '}}' ~ \"\\\"%}\" ~ (a|__w) }} {"),
            ("{{ a, b }}", "{{ (a|__w), (b|__w) }}"),
            ("{\n{{a}}{%if b%}{%else%}{%endif%}", "{\n{{(a|__w)}}{%if (b|__w)%}{%else%}{%endif%}"),
        ] {
            assert_eq!(guarded(source).expect(source), expected);
        }
    }

    #[test]
    fn what_is_not_known_is_refused_with_its_line() {
        for source in [
            "\n{{ a",
            "\n{{ 'a }}",
            "\n{% include 'a' %}",
            "\n{{ a b }}",
            "\n{{ }}",
            "\n{{ a | }}",
            "\n{{ (a }}",
            "\n{{ [a }}",
            "\n{% for a %}",
            "\n{{ a. }}",
            "\n{{ a[ }}",
            "\n{{ {a} }}",
            "\n{% set %}",
            "\n{% %}",
            "\n{{ a ? b }}",
            "\n{{ f(a }}",
            "\n{{ a is }}",
            "\n{% if %}",
            "\n{% macro f(1) %}",
            "\n{{ $ }}",
        ] {
            let error = guarded(source).expect_err(source);
            assert!(matches!(error, ChatError::Syntax { line: 2, .. }), "{source}: {error:?}");
        }
        let deep = format!("{{{{ {}a{} }}}}", "(".repeat(1000), ")".repeat(1000));
        assert!(matches!(guarded(&deep), Err(ChatError::Syntax { .. })));
    }
}
