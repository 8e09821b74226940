//! Finds the places in a source file that can be changed, and the changes.
//!
//! A *site* is a piece of code with one or more *mutants*: changes of that piece, one of which is
//! active at a time. Only code of functions counts. Not changed: `const` code, tests, code for loom
//! and shuttle, the arguments of macros, `Debug` implementations, calls that are there for tests
//! alone (`steps`, `maybe_yield`), hints to the processor ([`HINTS`]), and literals
//! that say how much memory is reserved ([`RESERVES`]). Memory orderings are the subject of
//! `ci/mutations.py`.

use std::collections::HashSet;
use std::ops::Range;

use proc_macro2::Span;
use quote::ToTokens;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{BinOp, Block, Expr, Lit, ReturnType, Stmt, Type, UnOp};

/// Functions that ask the processor for memory ahead of time, or to wait a little, and functions
/// that compute for which addresses. They change no result, only how long the result takes, so no
/// test can notice that one is left out.
const HINTS: [&str; 9] = [
    "entry",
    "few_from",
    "prefetch",
    "prefetch_ahead",
    "prefetch_each",
    "prefetches",
    "spin_loop",
    "word",
    "yield_now",
];

/// Functions that ask for memory ahead of time. A test can notice that such a call is left out,
/// because a later one cannot fail as a value. No test can notice that it asks for more.
const RESERVES: [&str; 3] = ["reserve", "try_reserve", "try_reserve_exact"];

/// A change.
pub struct Mutant {
    /// The replacement. Its meaning depends on the form of the site.
    pub by: String,
    /// The change, for people. Together with file and function it names the mutant.
    pub what: String,
}

/// How a site is woven.
pub enum Form {
    /// `left op right`, each operand evaluated once. `by` is another operator.
    Binary { left: Range<usize>, op: Range<usize>, right: Range<usize>, compares: bool },
    /// `left op= right`.
    Assign { left: Range<usize>, op: Range<usize>, right: Range<usize> },
    /// `left && right` or `left || right`; the one mutant is the other operator.
    Lazy { left: Range<usize>, op: Range<usize>, right: Range<usize> },
    /// A condition. `by` is its new value: `true` or `false`.
    Condition(Range<usize>),
    /// A condition that begins with `let`. The one mutant never matches.
    Let(Range<usize>),
    /// `!inner`; the mutant is `inner`.
    Not { op: Range<usize>, inner: Range<usize> },
    /// A literal. `by` is another.
    Literal(Range<usize>),
    /// A statement; the mutant leaves it out.
    Statement(Range<usize>),
    /// The body of a function, from behind its brace. `by` returns at once.
    Body(Range<usize>),
    /// An arm of a `match` that has an arm for everything else, up to the end of its pattern. The
    /// mutant never takes it.
    Arm(Range<usize>),
}

/// A place with its mutants.
pub struct Site {
    /// How it is woven.
    pub form: Form,
    /// The function around it, with its type.
    pub function: String,
    /// The line that it begins in, from 1.
    pub line: usize,
    /// The changes.
    pub mutants: Vec<Mutant>,
}

impl Site {
    /// The text that belongs to the site.
    pub fn range(&self) -> Range<usize> {
        match &self.form {
            Form::Binary { left, right, .. }
            | Form::Assign { left, right, .. }
            | Form::Lazy { left, right, .. } => left.start..right.end,
            Form::Not { op, inner } => op.start..inner.end,
            Form::Condition(range)
            | Form::Let(range)
            | Form::Literal(range)
            | Form::Statement(range)
            | Form::Body(range)
            | Form::Arm(range) => range.clone(),
        }
    }

    /// Of two sites with the same text, the one of lower rank is around the other.
    pub fn rank(&self) -> u8 {
        match self.form {
            Form::Statement(_) => 0,
            Form::Condition(_) | Form::Let(_) => 1,
            _ => 2,
        }
    }
}

/// The sites of a file, in the order of the text.
pub fn sites(text: &str) -> syn::Result<Vec<Site>> {
    let file = syn::parse_file(text)?;
    let mut finder = Finder {
        text,
        sites: Vec::new(),
        seen: HashSet::new(),
        owner: Vec::new(),
        in_function: false,
    };
    finder.visit_file(&file);
    let mut sites = finder.sites;
    sites.retain(|site| !site.mutants.is_empty());
    sites
        .sort_by_key(|site| (site.range().start, std::cmp::Reverse(site.range().end), site.rank()));
    Ok(sites)
}

struct Finder<'a> {
    text: &'a str,
    sites: Vec<Site>,
    /// Statements that are sites already.
    seen: HashSet<usize>,
    /// Type and function around the present place.
    owner: Vec<String>,
    in_function: bool,
}

fn range(span: Span) -> Range<usize> {
    span.byte_range()
}

/// Code without its comments and line breaks, not too long for a table.
fn short(code: &str) -> String {
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let code = lines.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ");
    if code.chars().count() <= 72 { code } else { code.chars().take(70).chain(['…']).collect() }
}

/// Whether an item is for tests or models only.
fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        if attribute.path().is_ident("test") {
            return true;
        }
        let tokens = attribute.meta.to_token_stream().to_string().replace(' ', "");
        attribute.path().is_ident("cfg")
            && [
                "cfg(test",
                "cfg(all(test",
                "cfg(loom",
                "cfg(shuttle",
                "cfg(any(loom",
                "cfg(all(loom",
                "cfg(any(test",
            ]
            .iter()
            .any(|start| tokens.starts_with(start))
    })
}

/// Whether a condition has a `let` in its chain.
fn has_let(condition: &Expr) -> bool {
    match condition {
        Expr::Let(_) => true,
        Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

/// Calls that are there for tests alone: they count steps, or let other threads run.
fn is_instrument(expr: &Expr) -> bool {
    let Expr::Call(call) = expr else { return false };
    let Expr::Path(path) = &*call.func else { return false };
    let names: Vec<String> =
        path.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
    names.iter().any(|name| name == "steps")
        || names.last().is_some_and(|name| name == "maybe_yield")
}

/// Whether an expression does nothing but call functions of [`HINTS`].
fn is_hint(expr: &Expr) -> bool {
    let names_hint = |expr: &Expr| match expr {
        Expr::Path(path) => path
            .path
            .segments
            .last()
            .is_some_and(|last| HINTS.iter().any(|hint| last.ident == hint)),
        _ => false,
    };
    match expr {
        Expr::Call(call) => names_hint(&call.func),
        Expr::MethodCall(call) => {
            HINTS.iter().any(|hint| call.method == hint)
                || (call.method == "for_each" && call.args.iter().all(names_hint))
        }
        Expr::Unsafe(each) => is_hint_block(&each.block),
        Expr::Block(each) => is_hint_block(&each.block),
        Expr::ForLoop(each) => is_hint_block(&each.body),
        Expr::If(each) => {
            is_hint_block(&each.then_branch)
                && each.else_branch.as_ref().is_none_or(|(_, other)| is_hint(other))
        }
        _ => false,
    }
}

/// Whether a block only gives hints and computes their arguments.
fn is_hint_block(block: &Block) -> bool {
    let is_expr = |stmt: &&Stmt| matches!(stmt, Stmt::Expr(..));
    block.stmts.iter().any(|stmt| is_expr(&stmt))
        && block.stmts.iter().all(|stmt| match stmt {
            Stmt::Expr(expr, _) => is_hint(expr),
            Stmt::Local(_) => true,
            _ => false,
        })
}

fn is_compare(op: &BinOp) -> bool {
    matches!(
        op,
        BinOp::Lt(_) | BinOp::Le(_) | BinOp::Gt(_) | BinOp::Ge(_) | BinOp::Eq(_) | BinOp::Ne(_)
    )
}

/// Values that a function of this type can return at once.
fn returned(output: &Type) -> Vec<String> {
    let code = output.to_token_stream().to_string().replace(' ', "");
    let last = |path: &syn::TypePath| path.path.segments.last().cloned();
    let inner = |segment: &syn::PathSegment| match &segment.arguments {
        syn::PathArguments::AngleBracketed(arguments) => {
            arguments.args.iter().find_map(|argument| match argument {
                syn::GenericArgument::Type(kind) => Some(kind.clone()),
                _ => None,
            })
        }
        _ => None,
    };
    let some = |values: &[&str]| values.iter().map(|&value| value.to_owned()).collect();
    match output {
        Type::Ptr(pointer) if pointer.mutability.is_some() => some(&["std::ptr::null_mut()"]),
        Type::Ptr(_) => some(&["std::ptr::null()"]),
        Type::Reference(_) if code.ends_with("str") => some(&["\"\""]),
        Type::Tuple(tuple) if tuple.elems.is_empty() => some(&["()"]),
        Type::Path(path) => {
            let Some(segment) = last(path) else { return Vec::new() };
            match segment.ident.to_string().as_str() {
                "bool" => some(&["true", "false"]),
                "usize" | "u8" | "u16" | "u32" | "u64" | "u128" | "c_uint" | "c_ulong" => {
                    some(&["0", "1"])
                }
                "isize" | "i8" | "i16" | "i32" | "i64" | "c_int" | "c_long" | "c_longlong" => {
                    some(&["0", "1", "-1"])
                }
                "String" => some(&["String::new()"]),
                "Vec" => some(&["Vec::new()"]),
                "Option" => some(&["None"]),
                "Result" => match inner(&segment) {
                    Some(kind) => {
                        returned(&kind).into_iter().map(|value| format!("Ok({value})")).collect()
                    }
                    None => Vec::new(),
                },
                _ => Vec::new(),
            }
        }
        _ => Vec::new(),
    }
}

impl Finder<'_> {
    fn add(&mut self, form: Form, span: Span, mutants: Vec<Mutant>) {
        let function = self.owner.join("::");
        self.sites.push(Site { form, function, line: span.start().line, mutants });
    }

    fn code(&self, range: Range<usize>) -> String {
        short(&self.text[range])
    }

    /// A function's body, with the values that it can return at once.
    fn function(&mut self, signature: &syn::Signature, block: &Block) {
        let name = signature.ident.to_string();
        if HINTS.contains(&name.as_str()) {
            return;
        }
        self.owner.push(name.clone());
        let before = std::mem::replace(&mut self.in_function, true);
        if signature.constness.is_none() {
            let all = range(block.span());
            let code = self.text[all.start + 1..all.end - 1].trim().to_owned();
            let values = match &signature.output {
                ReturnType::Default => vec!["()".to_owned()],
                ReturnType::Type(_, output) => returned(output),
            };
            for value in values {
                if value == code || (value == "()" && code.is_empty()) {
                    continue;
                }
                let does = if value == "()" {
                    "does nothing".to_owned()
                } else {
                    format!("returns `{value}`")
                };
                let mutants = vec![Mutant { what: format!("`{name}` {does}"), by: value }];
                // A site each: a value that does not compile costs no other.
                self.add(Form::Body(all.start + 1..all.end), signature.ident.span(), mutants);
            }
            if matches!(signature.output, ReturnType::Default) {
                self.unit_block(block);
            }
            self.visit_block(block);
        }
        self.in_function = before;
        self.owner.pop();
    }

    /// A statement that can be left out.
    fn statement(&mut self, expr: &Expr, semi: Option<&syn::token::Semi>) {
        let mut all = range(expr.span());
        if !self.seen.insert(all.start) {
            return;
        }
        let what = match expr {
            Expr::ForLoop(each) => format!(
                "without the loop `for {} in {}`",
                self.code(range(each.pat.span())),
                self.code(range(each.expr.span()))
            ),
            _ => format!("without `{}`", self.code(all.clone())),
        };
        if let Some(semi) = semi {
            all.end = range(semi.span()).end;
        }
        self.add(Form::Statement(all), expr.span(), vec![Mutant { by: String::new(), what }]);
    }

    /// An expression whose value is `()`.
    fn unit(&mut self, expr: &Expr, semi: Option<&syn::token::Semi>) {
        match expr {
            _ if is_instrument(expr) || is_hint(expr) => {}
            Expr::Call(_) | Expr::MethodCall(_) | Expr::Assign(_) | Expr::ForLoop(_) => {
                self.statement(expr, semi)
            }
            Expr::Binary(binary) if is_assign(&binary.op) => self.statement(expr, semi),
            Expr::Try(_) if semi.is_some() => self.statement(expr, semi),
            Expr::If(each) => {
                self.unit_block(&each.then_branch);
                if let Some((_, other)) = &each.else_branch {
                    self.unit(other, None);
                }
            }
            Expr::Match(each) if semi.is_none() => {
                each.arms.iter().for_each(|arm| self.unit(&arm.body, None))
            }
            Expr::Unsafe(each) if semi.is_some() && each.block.stmts.len() == 1 => {
                self.statement(expr, semi)
            }
            Expr::Unsafe(each) => self.unit_block(&each.block),
            Expr::Block(each) => self.unit_block(&each.block),
            _ => {}
        }
    }

    /// A block whose value is `()`: that of its last expression.
    fn unit_block(&mut self, block: &Block) {
        if let Some(Stmt::Expr(expr, None)) = block.stmts.last() {
            self.unit(expr, None);
        }
    }

    /// A condition of `if`, `while` or a guard.
    fn condition(&mut self, condition: &Expr, values: &[&str]) {
        if has_let(condition) {
            let what = format!("`{}` never matches", self.code(range(condition.span())));
            self.add(
                Form::Let(range(condition.span())),
                condition.span(),
                vec![Mutant { by: String::new(), what }],
            );
            self.chain(condition);
            return;
        }
        let all = range(condition.span());
        let code = self.code(all.clone());
        let mutants = values
            .iter()
            .map(|value| Mutant {
                by: (*value).to_owned(),
                what: format!("the condition `{code}` is {value}"),
            })
            .collect();
        self.add(Form::Condition(all), condition.span(), mutants);
        match condition {
            // A test that notices `true` and `false` also notices the opposite comparison. Only the
            // boundary is left.
            Expr::Binary(binary) if is_compare(&binary.op) => {
                self.binary(binary, true);
                self.operand(&binary.left);
                self.operand(&binary.right);
            }
            Expr::Unary(unary) if matches!(unary.op, UnOp::Not(_)) => self.visit_expr(&unary.expr),
            _ => self.visit_expr(condition),
        }
    }

    /// A condition with `let` in it: each other part can be true or false.
    fn chain(&mut self, condition: &Expr) {
        match condition {
            Expr::Let(each) => self.visit_expr(&each.expr),
            Expr::Binary(binary) if has_let(condition) => {
                self.chain(&binary.left);
                self.chain(&binary.right);
            }
            _ => self.condition(condition, &["true", "false"]),
        }
    }

    /// An operand: its own literal is left to the operator's mutants.
    fn operand(&mut self, expr: &Expr) {
        match expr {
            Expr::Lit(_) => {}
            Expr::Unary(unary) if matches!(*unary.expr, Expr::Lit(_)) => {}
            _ => self.visit_expr(expr),
        }
    }

    fn binary(&mut self, binary: &syn::ExprBinary, is_condition: bool) {
        let (boundary, others): (&[&str], &[&str]) = match binary.op {
            BinOp::Lt(_) => (&["<="], &[">="]),
            BinOp::Le(_) => (&["<"], &[">"]),
            BinOp::Gt(_) => (&[">="], &["<="]),
            BinOp::Ge(_) => (&[">"], &["<"]),
            BinOp::Eq(_) => (&[], &["!="]),
            BinOp::Ne(_) => (&[], &["=="]),
            BinOp::Add(_) => (&["-"], &[]),
            BinOp::Sub(_) => (&["+"], &[]),
            BinOp::Mul(_) => (&["+"], &[]),
            BinOp::Div(_) => (&["*"], &[]),
            BinOp::Rem(_) => (&["/"], &[]),
            BinOp::BitAnd(_) => (&["|"], &[]),
            BinOp::BitOr(_) => (&["&"], &[]),
            BinOp::BitXor(_) => (&["|"], &[]),
            BinOp::Shl(_) => (&[">>"], &[]),
            BinOp::Shr(_) => (&["<<"], &[]),
            _ => return,
        };
        let (left, op, right) =
            (range(binary.left.span()), range(binary.op.span()), range(binary.right.span()));
        let (before, sign, after) =
            (self.code(left.clone()), self.code(op.clone()), self.code(right.clone()));
        let others = if is_condition { &[] } else { others };
        let mutants = boundary
            .iter()
            .chain(others)
            .map(|by| Mutant {
                by: (*by).to_owned(),
                what: format!("`{before} {sign} {after}` becomes `{by}`"),
            })
            .collect();
        self.add(
            Form::Binary { left, op, right, compares: is_compare(&binary.op) },
            binary.op.span(),
            mutants,
        );
    }
}

fn is_assign(op: &BinOp) -> bool {
    opposite_assign(op).is_some()
}

fn opposite_assign(op: &BinOp) -> Option<&'static str> {
    Some(match op {
        BinOp::AddAssign(_) => "-=",
        BinOp::SubAssign(_) => "+=",
        BinOp::MulAssign(_) => "+=",
        BinOp::DivAssign(_) => "*=",
        BinOp::RemAssign(_) => "/=",
        BinOp::BitAndAssign(_) => "|=",
        BinOp::BitOrAssign(_) => "&=",
        BinOp::BitXorAssign(_) => "|=",
        BinOp::ShlAssign(_) => ">>=",
        BinOp::ShrAssign(_) => "<<=",
        _ => return None,
    })
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attributes: &[syn::Attribute] = match item {
            syn::Item::Fn(item) => &item.attrs,
            syn::Item::Impl(item) => &item.attrs,
            syn::Item::Mod(item) => &item.attrs,
            syn::Item::Trait(item) => &item.attrs,
            syn::Item::Const(_)
            | syn::Item::Static(_)
            | syn::Item::Enum(_)
            | syn::Item::Struct(_) => return,
            _ => &[],
        };
        if is_for_tests(attributes) {
            return;
        }
        match item {
            // Exported functions of the C library: their bodies are plain Rust.
            syn::Item::Macro(item) if item.mac.path.is_ident("export") => {
                if let Ok(file) = item.mac.parse_body::<syn::File>() {
                    // Visited as a file. Its syntax tree ends here, so the walk gets clones.
                    let mut inner = Finder {
                        text: self.text,
                        sites: Vec::new(),
                        seen: HashSet::new(),
                        owner: self.owner.clone(),
                        in_function: false,
                    };
                    inner.visit_file(&file);
                    self.sites.extend(inner.sites);
                }
            }
            syn::Item::Macro(_) => {}
            _ => visit::visit_item(self, item),
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if let Some((_, path, _)) = &item.trait_
            && path.segments.last().is_some_and(|segment| segment.ident == "Debug")
        {
            return;
        }
        let name = match &*item.self_ty {
            Type::Path(path) => path
                .path
                .segments
                .last()
                .map(|segment| segment.ident.to_string())
                .unwrap_or_default(),
            other => short(&other.to_token_stream().to_string()),
        };
        self.owner.push(name);
        visit::visit_item_impl(self, item);
        self.owner.pop();
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.owner.push(item.ident.to_string());
        visit::visit_item_trait(self, item);
        self.owner.pop();
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig, &item.block);
    }

    fn visit_impl_item(&mut self, item: &'ast syn::ImplItem) {
        if let syn::ImplItem::Fn(item) = item
            && !is_for_tests(&item.attrs)
        {
            self.function(&item.sig, &item.block);
        }
    }

    fn visit_trait_item(&mut self, item: &'ast syn::TraitItem) {
        if let syn::TraitItem::Fn(item) = item
            && let Some(block) = &item.default
        {
            self.function(&item.sig, block);
        }
    }

    // Types, patterns, attributes and macros have nothing to change.
    fn visit_type(&mut self, _: &'ast Type) {}
    fn visit_pat(&mut self, _: &'ast syn::Pat) {}
    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}
    fn visit_macro(&mut self, _: &'ast syn::Macro) {}
    fn visit_expr_const(&mut self, _: &'ast syn::ExprConst) {}
    fn visit_generics(&mut self, _: &'ast syn::Generics) {}
    fn visit_path(&mut self, _: &'ast syn::Path) {}

    fn visit_block(&mut self, block: &'ast Block) {
        let last = block.stmts.len().saturating_sub(1);
        for (index, stmt) in block.stmts.iter().enumerate() {
            match stmt {
                Stmt::Expr(expr, semi) if self.in_function && (semi.is_some() || index != last) => {
                    self.unit(expr, semi.as_ref());
                }
                _ => {}
            }
            self.visit_stmt(stmt);
        }
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        if is_for_tests(&local.attrs) {
            return;
        }
        if let (syn::Pat::Wild(_), Some(init)) = (&local.pat, &local.init)
            && let Expr::Call(_) | Expr::MethodCall(_) = &*init.expr
        {
            let what = format!("without `{}`", self.code(range(local.span())));
            let mutants = vec![Mutant { by: String::new(), what }];
            self.add(Form::Statement(range(local.span())), local.span(), mutants);
        }
        visit::visit_local(self, local);
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        if let Some((_, guard)) = &arm.guard {
            self.condition(guard, &["true", "false"]);
        }
        self.visit_expr(&arm.body);
    }

    fn visit_expr(&mut self, expr: &'ast Expr) {
        match expr {
            _ if is_instrument(expr) || is_hint(expr) => {}
            Expr::Binary(binary) => {
                if let Some(by) = opposite_assign(&binary.op) {
                    let (left, op, right) = (
                        range(binary.left.span()),
                        range(binary.op.span()),
                        range(binary.right.span()),
                    );
                    let what = format!("`{}` becomes `{by}`", self.code(left.start..right.end));
                    let mutants = vec![Mutant { by: by.to_owned(), what }];
                    self.add(Form::Assign { left, op, right }, binary.op.span(), mutants);
                    self.operand(&binary.right);
                    return;
                }
                if let BinOp::And(_) | BinOp::Or(_) = binary.op {
                    let (left, op, right) = (
                        range(binary.left.span()),
                        range(binary.op.span()),
                        range(binary.right.span()),
                    );
                    let by = if matches!(binary.op, BinOp::And(_)) { "||" } else { "&&" };
                    let what = format!("`{}` becomes `{by}`", self.code(left.start..right.end));
                    let mutants = vec![Mutant { by: by.to_owned(), what }];
                    self.add(Form::Lazy { left, op, right }, binary.op.span(), mutants);
                    self.visit_expr(&binary.left);
                    self.visit_expr(&binary.right);
                    return;
                }
                self.binary(binary, false);
                self.operand(&binary.left);
                self.operand(&binary.right);
            }
            Expr::Unary(unary) => match (&unary.op, &*unary.expr) {
                (UnOp::Not(not), inner) => {
                    let (op, inner_range) = (range(not.span()), range(inner.span()));
                    let what =
                        format!("`{}` without its `!`", self.code(op.start..inner_range.end));
                    let mutants = vec![Mutant { by: String::new(), what }];
                    self.add(Form::Not { op, inner: inner_range }, unary.span(), mutants);
                    self.visit_expr(inner);
                }
                (UnOp::Neg(_), Expr::Lit(_)) => {
                    let all = range(unary.span());
                    let what = format!("`{}` becomes `0`", self.code(all.clone()));
                    self.add(
                        Form::Literal(all),
                        unary.span(),
                        vec![Mutant { by: "0".to_owned(), what }],
                    );
                }
                _ => self.visit_expr(&unary.expr),
            },
            Expr::Lit(literal) => {
                let all = range(literal.span());
                let by = match &literal.lit {
                    Lit::Int(number) => match number.base10_parse::<u128>() {
                        Ok(value) => format!("{}{}", value + 1, number.suffix()),
                        Err(_) => return,
                    },
                    Lit::Bool(value) => (!value.value).to_string(),
                    _ => return,
                };
                let what = format!("`{}` becomes `{by}`", self.code(all.clone()));
                self.add(Form::Literal(all), literal.span(), vec![Mutant { by, what }]);
            }
            Expr::If(each) => {
                self.condition(&each.cond, &["true", "false"]);
                if each.else_branch.is_none() {
                    self.unit_block(&each.then_branch);
                }
                self.visit_block(&each.then_branch);
                if let Some((_, other)) = &each.else_branch {
                    self.visit_expr(other);
                }
            }
            Expr::While(each) => {
                self.condition(&each.cond, &["false"]);
                self.unit_block(&each.body);
                self.visit_block(&each.body);
            }
            Expr::ForLoop(each) => {
                self.visit_expr(&each.expr);
                self.unit_block(&each.body);
                self.visit_block(&each.body);
            }
            Expr::Loop(each) => {
                self.unit_block(&each.body);
                self.visit_block(&each.body);
            }
            Expr::Match(each) => {
                self.visit_expr(&each.expr);
                let for_all_else = each.arms.iter().position(|arm| {
                    arm.guard.is_none()
                        && matches!(
                            arm.pat,
                            syn::Pat::Wild(_) | syn::Pat::Ident(syn::PatIdent { subpat: None, .. })
                        )
                        && arm
                            .pat
                            .to_token_stream()
                            .to_string()
                            .chars()
                            .next()
                            .is_some_and(|first| first == '_' || first.is_lowercase())
                });
                for (index, arm) in each.arms.iter().enumerate() {
                    if for_all_else.is_some_and(|place| index < place) && arm.guard.is_none() {
                        let pattern = range(arm.pat.span());
                        let what = format!("no arm `{}`", self.code(pattern.clone()));
                        let mutants = vec![Mutant { by: String::new(), what }];
                        self.add(Form::Arm(pattern), arm.pat.span(), mutants);
                    }
                    self.visit_arm(arm);
                }
            }
            Expr::MethodCall(call) if RESERVES.iter().any(|name| call.method == name) => {
                self.visit_expr(&call.receiver);
                call.args.iter().for_each(|argument| self.operand(argument));
            }
            // The length of an array is constant.
            Expr::Repeat(each) => self.visit_expr(&each.expr),
            Expr::Index(each) => {
                self.visit_expr(&each.expr);
                self.visit_expr(&each.index);
            }
            _ => visit::visit_expr(self, expr),
        }
    }
}
