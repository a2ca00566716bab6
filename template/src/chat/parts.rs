//! Does a template go through the parts of a message's content?
//!
//! The answer is vLLM's: there is a loop over the content of a message, over a variable or a
//! parameter of a macro that holds it, or over a variable of that name. Where a variable is visible
//! is not looked at.

use std::collections::BTreeSet;

use minijinja::machinery::ast::{Call, CallArg, Expr, ForLoop, Macro, Stmt};
use minijinja::machinery::{WhitespaceConfig, parse};
use minijinja::syntax::SyntaxConfig;

/// The field of a message.
const CONTENT: &str = "content";

/// Returns true if a template goes through the parts of a content that is a list.
pub(super) fn are_read(source: &str) -> bool {
    let source = super::with_raw_newlines(&super::without_generation_tags(source));
    let Ok(template) = parse(&source, "chat template", SyntaxConfig, WhitespaceConfig::default())
    else {
        return false;
    };
    let mut found = Found::default();
    found.stmt(&template);
    found.loops_over_content()
}

/// What is assigned, gone through, declared and called in a template.
#[derive(Default)]
struct Found<'a, 't> {
    /// Names with the values that they get.
    assignments: Vec<(&'t str, &'a Expr<'t>)>,
    loops: Vec<FoundLoop<'a, 't>>,
    macros: Vec<&'a Macro<'t>>,
    calls: Vec<&'a Call<'t>>,
    is_in_macro: bool,
}

struct FoundLoop<'a, 't> {
    target: Option<&'t str>,
    iterated: &'a Expr<'t>,
    is_in_macro: bool,
}

impl<'a, 't> Found<'a, 't> {
    fn loops_over_content(&self) -> bool {
        let mut lists = BTreeSet::from(["messages"]);
        self.add_assigned(&mut lists, is_one_of);
        let over_messages = self.loops.iter().filter(|each| is_one_of(each.iterated, &lists));
        let messages: BTreeSet<&str> = over_messages.filter_map(|each| each.target).collect();

        let mut contents = BTreeSet::new();
        let is_content = |value: &Expr<'_>, contents: &BTreeSet<&str>| {
            is_content_of(value, &messages) || is_one_of(value, contents)
        };
        // A macro may hand its parameter to another one.
        loop {
            let before = contents.len();
            self.add_assigned(&mut contents, is_content);
            for call in &self.calls {
                self.add_parameters(call, &mut contents, is_content);
            }
            if contents.len() == before {
                break;
            }
        }

        self.loops.iter().any(|each| {
            is_content(each.iterated, &contents)
                || (!each.is_in_macro && name_of(each.iterated) == Some(CONTENT))
        })
    }

    /// Adds the names that get one of the values.
    fn add_assigned(
        &self,
        names: &mut BTreeSet<&'t str>,
        is_value: impl Fn(&Expr<'_>, &BTreeSet<&str>) -> bool,
    ) {
        loop {
            let before = names.len();
            for (name, value) in &self.assignments {
                if is_value(value, names) {
                    names.insert(name);
                }
            }
            if names.len() == before {
                return;
            }
        }
    }

    /// Adds the parameters of macros that a call gives one of the values.
    fn add_parameters(
        &self,
        call: &Call<'t>,
        names: &mut BTreeSet<&'t str>,
        is_value: impl Fn(&Expr<'_>, &BTreeSet<&str>) -> bool,
    ) {
        let called = self.macros.iter().filter(|it| Some(it.name) == name_of(&call.expr));
        for called in called {
            let parameters = called.args.iter().map(name_of);
            for (parameter, arg) in parameters.zip(&call.args) {
                if let (Some(parameter), CallArg::Pos(value)) = (parameter, arg)
                    && is_value(value, names)
                {
                    names.insert(parameter);
                }
            }
            for arg in &call.args {
                if let CallArg::Kwarg(name, value) = arg
                    && is_value(value, names)
                {
                    names.insert(name);
                }
            }
        }
    }

    fn stmts(&mut self, stmts: &'a [Stmt<'t>]) {
        for stmt in stmts {
            self.stmt(stmt);
        }
    }

    fn stmt(&mut self, stmt: &'a Stmt<'t>) {
        match stmt {
            Stmt::Template(template) => self.stmts(&template.children),
            Stmt::EmitExpr(emit) => self.expr(&emit.expr),
            Stmt::ForLoop(each) => self.for_loop(each),
            Stmt::IfCond(cond) => {
                self.expr(&cond.expr);
                self.stmts(&cond.true_body);
                self.stmts(&cond.false_body);
            }
            Stmt::WithBlock(with) => {
                for (target, value) in &with.assignments {
                    self.assign(target, value);
                }
                self.stmts(&with.body);
            }
            Stmt::Set(set) => self.assign(&set.target, &set.expr),
            Stmt::SetBlock(set) => self.stmts(&set.body),
            Stmt::AutoEscape(escape) => self.stmts(&escape.body),
            Stmt::FilterBlock(block) => self.stmts(&block.body),

            Stmt::Macro(declared) => self.declared(declared),
            Stmt::CallBlock(block) => {
                self.call(&block.call);
                self.declared(&block.macro_decl);
            }
            Stmt::Do(block) => self.call(&block.call),
            _ => {}
        }
    }

    fn assign(&mut self, target: &'a Expr<'t>, value: &'a Expr<'t>) {
        self.assignments.extend(name_of(target).map(|name| (name, value)));
        self.expr(value);
    }

    fn declared(&mut self, declared: &'a Macro<'t>) {
        self.macros.push(declared);
        let was_in_macro = std::mem::replace(&mut self.is_in_macro, true);
        self.stmts(&declared.body);
        self.is_in_macro = was_in_macro;
    }

    fn for_loop(&mut self, each: &'a ForLoop<'t>) {
        let (target, is_in_macro) = (name_of(&each.target), self.is_in_macro);
        self.loops.push(FoundLoop { target, iterated: &each.iter, is_in_macro });
        self.expr(&each.iter);
        self.stmts(&each.body);
        self.stmts(&each.else_body);
    }

    fn call(&mut self, call: &'a Call<'t>) {
        self.calls.push(call);
        self.expr(&call.expr);
        for arg in &call.args {
            let (CallArg::Pos(value)
            | CallArg::Kwarg(_, value)
            | CallArg::PosSplat(value)
            | CallArg::KwargSplat(value)) = arg;
            self.expr(value);
        }
    }

    /// Finds the calls in an expression.
    fn expr(&mut self, expr: &'a Expr<'t>) {
        match expr {
            Expr::Call(call) => self.call(call),
            Expr::Slice(slice) => self.expr(&slice.expr),
            Expr::UnaryOp(unary) => self.expr(&unary.expr),

            Expr::BinOp(binary) => {
                self.expr(&binary.left);
                self.expr(&binary.right);
            }
            Expr::Compare(compare) => {
                self.expr(&compare.expr);
                compare.ops.iter().for_each(|op| self.expr(&op.expr));
            }
            Expr::IfExpr(choice) => {
                self.expr(&choice.test_expr);
                self.expr(&choice.true_expr);
                choice.false_expr.iter().for_each(|other| self.expr(other));
            }

            Expr::Filter(filter) => filter.expr.iter().for_each(|value| self.expr(value)),
            Expr::Test(test) => self.expr(&test.expr),
            Expr::GetAttr(get) => self.expr(&get.expr),
            Expr::GetItem(get) => self.expr(&get.expr),

            Expr::List(list) => list.items.iter().for_each(|item| self.expr(item)),
            Expr::Map(map) => map.values.iter().for_each(|value| self.expr(value)),
            Expr::Var(_) | Expr::Const(_) => {}
        }
    }
}

fn name_of<'t>(expr: &Expr<'t>) -> Option<&'t str> {
    match expr {
        Expr::Var(name) => Some(name.id),
        _ => None,
    }
}

/// Returns what is filtered, tested or cut out.
fn source_of<'a, 't>(expr: &'a Expr<'t>) -> &'a Expr<'t> {
    match expr {
        Expr::Filter(filter) => filter.expr.as_ref().map_or(expr, source_of),
        Expr::Test(test) => source_of(&test.expr),
        Expr::Slice(slice) => source_of(&slice.expr),
        _ => expr,
    }
}

fn is_one_of(expr: &Expr<'_>, names: &BTreeSet<&str>) -> bool {
    name_of(source_of(expr)).is_some_and(|name| names.contains(name))
}

/// True for `message.content` and `message['content']`.
fn is_content_of(expr: &Expr<'_>, messages: &BTreeSet<&str>) -> bool {
    match source_of(expr) {
        Expr::GetAttr(get) => get.name == CONTENT && is_one_of(&get.expr, messages),
        Expr::GetItem(get) => {
            let is_content = match &get.subscript_expr {
                Expr::Const(key) => key.value.as_str() == Some(CONTENT),
                _ => false,
            };
            is_content && is_one_of(&get.expr, messages)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_over_the_content_is_found() {
        let each = |body: &str| format!("{{% for m in messages[1:] %}}{body}{{% endfor %}}");
        let shown = "{% macro show(x, y) %}{% for p in y %}{{ p.text }}{% endfor %}{% endmacro %}";
        let read = [
            each("{% for p in m.content %}{{ p.text }}{% endfor %}"),
            each("{% for p in m['content'] | list %}{{ p.text }}{% endfor %}"),
            each("{% set c = m.content %}{% for p in c %}{{ p.text }}{% endfor %}"),
            "{% for p in content %}{{ p.text }}{% endfor %}".to_owned(),
            format!("{shown}{}", each("{{ 'a' + show(1, m.content) | trim }}")),
            format!("{shown}{}", each("{{ show(y=m['content']) }}")),
            format!(
                "{{% set ms = messages %}}{}",
                each("{% for p in m.content %}{% endfor %}").replace("messages[1:]", "ms")
            ),
        ];
        for source in read {
            assert!(are_read(&source), "{source}");
        }
        let unread = [
            each("{{ m.content }}"),
            each("{% for p in m.tool_calls %}{{ p }}{% endfor %}"),
            each("{% for line in m.content.split('x') %}{{ line }}{% endfor %}"),
            format!("{shown}{}", each("{{ show(m.content, 1) }}")),
            "{% macro f(content) %}{% for p in content %}{% endfor %}{% endmacro %}".to_owned(),
            "{% for".to_owned(),
        ];
        for source in unread {
            assert!(!are_read(&source), "{source}");
        }
    }
}
