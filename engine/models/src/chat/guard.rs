//! Makes every value of a template pay for its size before anything is done with it.
//!
//! Lists in lists can be small to make and endless to join, to compare or to print, and the engine's fuel does not see it (see
//! [`weigh`](super::weigh)). So the source is rewritten: behind every operand, the filter `__w` is put in, which weighs it and
//! gives it back. `a.b ~ c[0] | upper` becomes `(a.b|__w) ~ (c[0]|__w) | upper|__w`.
//!
//! The parser knows all expressions and the statements of chat templates; what it does not know is an error, since it would go
//! unweighed. It puts nothing in that has a newline, so that line numbers stay.

mod lex;
mod parser;

use super::ChatError;
use lex::tokens;
use parser::Parser;

/// The filter that weighs.
pub(super) const FILTER: &str = "__w";

const BEHIND: &str = "|__w";

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
