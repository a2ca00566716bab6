//! A template's operators, rewritten as calls.
//!
//! `minijinja` has no hook for `+`, for `~` and for what a loop takes, and its own differ from
//! Python's: it joins a number as Rust prints it, and loops over `none`. So `a + b + c` becomes
//! `__add(a, b, c)`, `a * b` becomes `__mul(a, b)`, `a ~ b` becomes `__join(a, b)`, and `for x in
//! y` becomes `for x in __each(y)`, which `operators.rs` defines. Before a long raw text stands a
//! call that counts it (`bounds.rs`). The parser is `minijinja`'s own; everything else of the
//! source, its lines included, stays as it is.

use minijinja::Error;
use minijinja::machinery::ast::{BinOp, BinOpKind, CallArg, Expr, ForLoop, Macro, Spanned, Stmt};
use minijinja::machinery::{Span, Token, WhitespaceConfig, parse, tokenize};
use minijinja::syntax::SyntaxConfig;

use super::bounds::SPEND;
use super::operators::{ADD, EACH, JOIN, MULTIPLY};

/// Letters of raw text that are not counted: the steps of a rendering bound those.
const RAW_CHARS_FREE: usize = 64;

/// Rewrites a template.
///
/// # Errors
/// If the template does not parse.
pub(super) fn with_calls(source: &str) -> Result<String, Error> {
    let whitespace = WhitespaceConfig::default();
    let tokens = tokenize(source, false, SyntaxConfig, whitespace);
    let mut rewrite =
        TemplateRewrite { source, tokens: tokens.collect::<Result<_, _>>()?, edits: Vec::new() };
    rewrite.stmt(&parse(source, "chat template", SyntaxConfig, whitespace)?);

    // The sort is stable: of two calls that open at one place, the outer one was noted first.
    rewrite.edits.sort_by_key(|edit| edit.start);
    let mut out = String::with_capacity(source.len() + 16 * rewrite.edits.len());
    let mut written = 0;
    for Edit { start, end, text } in rewrite.edits {
        out.push_str(&source[written..start]);
        out.push_str(&text);
        written = end;
    }
    out.push_str(&source[written..]);
    Ok(out)
}

/// Text in place of the bytes from `start` to `end`.
struct Edit {
    start: usize,
    end: usize,
    text: String,
}

/// The operators that become calls.
#[derive(Clone, Copy, PartialEq)]
enum Operator {
    Add,
    Multiply,
    Join,
}

impl Operator {
    fn of(binary: &BinOp<'_>) -> Option<Operator> {
        match binary.op {
            BinOpKind::Add => Some(Operator::Add),
            BinOpKind::Mul => Some(Operator::Multiply),
            BinOpKind::Concat => Some(Operator::Join),
            _ => None,
        }
    }

    fn is(self, token: &Token<'_>) -> bool {
        match self {
            Operator::Add => matches!(token, Token::Plus),
            Operator::Multiply => matches!(token, Token::Mul),
            Operator::Join => matches!(token, Token::Tilde),
        }
    }

    fn function(self) -> &'static str {
        match self {
            Operator::Add => ADD,
            Operator::Multiply => MULTIPLY,
            Operator::Join => JOIN,
        }
    }
}

struct TemplateRewrite<'a> {
    source: &'a str,
    tokens: Vec<(Token<'a>, Span)>,
    edits: Vec<Edit>,
}

impl<'a> TemplateRewrite<'a> {
    fn stmts(&mut self, stmts: &[Stmt<'a>]) {
        for stmt in stmts {
            self.stmt(stmt);
        }
    }

    fn stmt(&mut self, stmt: &Stmt<'a>) {
        match stmt {
            Stmt::Template(template) => self.stmts(&template.children),
            Stmt::EmitExpr(emit) => self.expr(&emit.expr),
            Stmt::EmitRaw(raw) => self.raw(raw.span()),
            Stmt::ForLoop(each) => self.for_loop(each),
            Stmt::IfCond(cond) => {
                self.expr(&cond.expr);
                self.stmts(&cond.true_body);
                self.stmts(&cond.false_body);
            }

            Stmt::WithBlock(with) => {
                for (_, value) in &with.assignments {
                    self.expr(value);
                }
                self.stmts(&with.body);
            }
            Stmt::Set(set) => self.expr(&set.expr),
            Stmt::SetBlock(set) => {
                self.exprs(&set.filter);
                self.stmts(&set.body);
            }
            Stmt::AutoEscape(escape) => self.stmts(&escape.body),
            Stmt::FilterBlock(block) => {
                self.expr(&block.filter);
                self.stmts(&block.body);
            }

            Stmt::Macro(declared) => self.declared(declared),
            Stmt::CallBlock(block) => {
                self.args(&block.call.args);
                self.declared(&block.macro_decl);
            }
            Stmt::Do(call) => self.args(&call.call.args),

            // Blocks and files of other templates, which a chat template does not have, are left
            // as they are.
            _ => {}
        }
    }

    /// Counts a long raw text, before its first letter: white space around it is that of the tags
    /// there. In a `raw` block no call could stand.
    fn raw(&mut self, span: Span) {
        let (start, end) = (span.start_offset as usize, span.end_offset as usize);
        let text = &self.source[start..end];
        let letters = text.trim().len();
        let tag = self.source[..start].rfind("{%").map(|at| &self.source[at + 2..start]);
        let is_block = tag.is_some_and(|tag| {
            let name = tag.trim_start_matches(['-', '+']).trim_start();
            name.starts_with("raw") && tag.trim_end().ends_with("%}")
        });
        if letters > RAW_CHARS_FREE && !is_block {
            let first = start + text.len() - text.trim_start().len();
            let text = format!("{{{{ {SPEND}({letters}) }}}}");
            self.edits.push(Edit { start: first, end: first, text });
        }
    }

    fn declared(&mut self, declared: &Macro<'a>) {
        self.exprs(&declared.defaults);
        self.stmts(&declared.body);
    }

    fn for_loop(&mut self, each: &ForLoop<'a>) {
        let (open, _) = self.after(&each.target, |token| matches!(token, Token::Ident("in")));
        let (_, first) = self.tokens[open + 1];
        let last = self.end_of_iterated(open + 1);
        self.insert(first.start_offset, format!("{EACH}("));
        self.insert(last.end_offset, ")".to_owned());

        self.expr(&each.iter);
        self.exprs(&each.filter_expr);
        self.stmts(&each.body);
        self.stmts(&each.else_body);
    }

    /// Finds the last token of what a loop goes over, given the first.
    fn end_of_iterated(&self, first: usize) -> Span {
        let mut depth = 0;
        for (i, (token, _)) in self.tokens.iter().enumerate().skip(first) {
            match token {
                Token::ParenOpen | Token::BracketOpen | Token::BraceOpen => depth += 1,
                Token::ParenClose | Token::BracketClose | Token::BraceClose => depth -= 1,
                Token::BlockEnd => return self.tokens[i - 1].1,
                Token::Ident("if" | "recursive") if depth == 0 => return self.tokens[i - 1].1,
                _ => {}
            }
        }
        self.tokens[first].1
    }

    fn exprs<'b>(&mut self, exprs: impl IntoIterator<Item = &'b Expr<'a>>)
    where
        'a: 'b,
    {
        for expr in exprs {
            self.expr(expr);
        }
    }

    fn expr(&mut self, expr: &Expr<'a>) {
        match expr {
            Expr::Var(_) | Expr::Const(_) => {}
            Expr::Slice(slice) => {
                self.expr(&slice.expr);
                self.exprs([&slice.start, &slice.stop, &slice.step].into_iter().flatten());
            }

            Expr::UnaryOp(unary) => self.expr(&unary.expr),
            Expr::BinOp(binary) => self.binary(binary),
            Expr::Compare(compare) => {
                self.expr(&compare.expr);
                self.exprs(compare.ops.iter().map(|op| &op.expr));
            }
            Expr::IfExpr(choice) => {
                self.exprs([&choice.test_expr, &choice.true_expr]);
                self.exprs(&choice.false_expr);
            }

            Expr::Filter(filter) => {
                self.exprs(&filter.expr);
                self.args(&filter.args);
            }
            Expr::Test(test) => {
                self.expr(&test.expr);
                self.args(&test.args);
            }
            Expr::GetAttr(get) => self.expr(&get.expr),
            Expr::GetItem(get) => self.exprs([&get.expr, &get.subscript_expr]),
            Expr::Call(call) => {
                self.expr(&call.expr);
                self.args(&call.args);
            }

            Expr::List(list) => self.exprs(&list.items),
            Expr::Map(map) => {
                self.exprs(&map.keys);
                self.exprs(&map.values);
            }
        }
    }

    fn args(&mut self, args: &[CallArg<'a>]) {
        for arg in args {
            match arg {
                CallArg::Pos(expr)
                | CallArg::Kwarg(_, expr)
                | CallArg::PosSplat(expr)
                | CallArg::KwargSplat(expr) => self.expr(expr),
            }
        }
    }

    fn binary(&mut self, binary: &Spanned<BinOp<'a>>) {
        let Some(operator) = Operator::of(binary) else {
            return self.exprs([&binary.left, &binary.right]);
        };
        let span = binary.span();
        self.insert(span.start_offset, format!("{}(", operator.function()));
        self.insert(span.end_offset, ")".to_owned());
        self.operands(binary, operator);
    }

    /// Puts commas between the operands of a chain, which is one call and not one in another:
    /// calls nest only so deep.
    fn operands(&mut self, binary: &Spanned<BinOp<'a>>, operator: Operator) {
        match &binary.left {
            // In brackets, it would begin later than the chain does.
            Expr::BinOp(left)
                if Operator::of(left) == Some(operator)
                    && left.span().start_offset == binary.span().start_offset =>
            {
                self.operands(left, operator);
            }
            left => self.expr(left),
        }
        let (_, found) = self.after(&binary.left, |token| operator.is(token));
        let (start, end) = (found.start_offset as usize, found.end_offset as usize);
        self.edits.push(Edit { start, end, text: ",".to_owned() });
        self.expr(&binary.right);
    }

    /// Finds the first token of a kind behind an expression. The parser has seen it there.
    fn after(&self, expr: &Expr<'a>, is: impl Fn(&Token<'a>) -> bool) -> (usize, Span) {
        let end = expr.span().end_offset;
        let start = self.tokens.partition_point(|(_, span)| span.start_offset < end);
        let at = self.tokens[start..].iter().position(|(token, _)| is(token)).unwrap_or_default();
        (start + at, self.tokens[start + at].1)
    }

    fn insert(&mut self, at: u32, text: String) {
        self.edits.push(Edit { start: at as usize, end: at as usize, text });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_become_calls_of_their_operands() {
        let cases = [
            ("{{ a + b }}", "{{ __add(a , b) }}"),
            ("{{ a + (b + c) + d }}", "{{ __add(a , (__add(b , c)) , d) }}"),
            ("{{ (a + b) + c }}", "{{ __add((__add(a , b)) , c) }}"),
            ("{{ a * b * 2 + c * 3 }}", "{{ __add(__mul(a , b , 2) , __mul(c , 3)) }}"),
            ("{{ a - b + c - d }}", "{{ __add(a - b , c) - d }}"),
            ("{{ a ~ b + c }}", "{{ __add(__join(a , b) , c) }}"),
            ("{{ a + b[e ~ 1]|f(c + d) }}", "{{ __add(a , b[__join(e , 1)]|f(__add(c , d))) }}"),
            (
                "{{ '+' + \"~\" if a + b == c else [d + e] }}",
                "{{ __add('+' , \"~\") if __add(a , b) == c else [__add(d , e)] }}",
            ),
            ("{%- set x = (a)+(b) -%} + {# + #}", "{%- set x = __add((a),(b)) -%} + {# + #}"),
            (
                "{% for x in y if x + 1 %}{% endfor %}",
                "{% for x in __each(y) if __add(x , 1) %}{% endfor %}",
            ),
            (
                "{% for a, b in (c + d)|items -%}{% endfor %}",
                "{% for a, b in __each((__add(c , d))|items) -%}{% endfor %}",
            ),
            (
                "{% macro m(a=b + c) %}{{ a.f(x=-a + 1) }}{% endmacro %}",
                "{% macro m(a=__add(b , c)) %}{{ a.f(x=__add(-a , 1)) }}{% endmacro %}",
            ),
            (
                "{% for x in y recursive %}é{{ loop(x.z ~ 'é') }}{% endfor %}",
                "{% for x in __each(y) recursive %}é{{ loop(__join(x.z , 'é')) }}{% endfor %}",
            ),
        ];
        for (source, expected) in cases {
            assert_eq!(with_calls(source).unwrap(), expected);
        }
    }

    #[test]
    fn a_long_raw_text_is_counted_before_its_first_letter() {
        let long = "a ".repeat(40);
        let counted = |source: &str| with_calls(source).unwrap();
        let source = format!("{{% if x -%}}\n  {long}\n{{%- endif %}} short");
        let place = format!("{{% if x -%}}\n  {{{{ __spend(79) }}}}{long}\n{{%- endif %}} short");
        assert_eq!(counted(&source), place);
        let raw = format!("{{% raw %}}{long}{{% endraw %}}");
        assert_eq!(counted(&raw), raw);
    }

    #[test]
    fn a_long_chain_is_one_call() {
        let source = format!("{{{{ a{} }}}}", " + 'b'".repeat(5000));
        let rewritten = with_calls(&source).unwrap();
        assert_eq!(rewritten.matches(ADD).count(), 1);
    }
}
