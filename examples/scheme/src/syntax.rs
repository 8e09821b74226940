//! From data to the tree: scopes, special forms and macros.
//!
//! The template of a macro may name what is visible where the macro is defined, and must not catch
//! the names of its user. So each expansion replaces a symbol of the template by an *alias*, a
//! fresh symbol that knows its base. A form that binds the alias binds no name of the user. Where
//! the alias is not bound, it means what its base means in the scope of the macro.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use standstill::{Gc, Trace};

use crate::code::{Lambda, Node, Special, Var};
use crate::codegen;
use crate::symbol::Symbol;
use crate::value::{Closure, Pair, Res, Value};
use crate::vm::Ctx;

/// A macro of `syntax-rules`.
#[derive(Trace)]
pub struct Macro {
    pub ellipsis: Gc<Symbol>,
    pub literals: Vec<Gc<Symbol>>,
    /// Patterns with their templates.
    pub rules: Vec<(Value, Value)>,
}

/// The names of a block. `None` instead of a scope is the outermost level.
pub type Env = Option<Rc<Scope>>;

pub struct Scope {
    names: RefCell<Vec<(Gc<Symbol>, Meaning)>>,
    outer: Env,
}

#[derive(Clone)]
pub enum Meaning {
    Local(Var),
    Macro(Gc<Macro>, Env),
    Special(Special),
    Global(Gc<Symbol>),
}

impl Meaning {
    fn is_same(&self, other: &Meaning) -> bool {
        match (self, other) {
            (Meaning::Local(a), Meaning::Local(b)) => a == b,
            (Meaning::Macro(a, _), Meaning::Macro(b, _)) => a == b,
            (Meaning::Special(a), Meaning::Special(b)) => a == b,
            (Meaning::Global(a), Meaning::Global(b)) => a == b,
            _ => false,
        }
    }
}

pub struct Expander<'a> {
    pub cx: &'a Ctx,
    /// Of each variable: whether it lies in a box, and how often it is used.
    boxed: Vec<bool>,
    pub uses: Vec<usize>,
    names: Vec<Gc<Symbol>>,
    /// Where the bases of the aliases have their meaning.
    aliases: HashMap<Gc<Symbol>, Env>,
}

/// Compiles a form of the outermost level to a procedure without parameters.
pub fn compile(cx: &Ctx, form: &Value) -> Res<Closure> {
    let mut expander = Expander {
        cx,
        boxed: Vec::new(),
        uses: Vec::new(),
        names: Vec::new(),
        aliases: HashMap::new(),
    };
    let node = expander.expand(form, &None)?;
    codegen::generate(&cx.m, &expander.boxed, node)
        .ok_or_else(|| cx.error("the procedure is too large", &[]))
}

impl Expander<'_> {
    pub fn fail<T>(&self, message: &str, form: &Value) -> Res<T> {
        Err(self.cx.error(message, &[self.strip(form)]))
    }

    pub fn scope(&self, outer: &Env) -> Rc<Scope> {
        Rc::new(Scope { names: RefCell::default(), outer: outer.clone() })
    }

    pub fn variable(&mut self, name: &Gc<Symbol>, scope: &Rc<Scope>) -> Var {
        self.boxed.push(false);
        self.uses.push(0);
        self.names.push(name.clone());
        let var = self.boxed.len() - 1;
        scope.names.borrow_mut().push((name.clone(), Meaning::Local(var)));
        var
    }

    pub fn alias(&mut self, base: &Gc<Symbol>, env: &Env) -> Gc<Symbol> {
        let alias = self.cx.rt.symbols.fresh(&self.cx.m, &base.name, Some(base.clone()));
        self.aliases.insert(alias.clone(), env.clone());
        alias
    }

    pub fn meaning(&self, symbol: &Gc<Symbol>, env: &Env) -> Meaning {
        let mut at = env;
        while let Some(scope) = at {
            let names = scope.names.borrow();
            if let Some((_, meaning)) = names.iter().rev().find(|(name, _)| name == symbol) {
                return meaning.clone();
            }
            at = &scope.outer;
        }
        if let Some(base) = &symbol.base {
            return self.meaning(base, self.aliases.get(symbol).unwrap_or(&None));
        }
        match symbol.global.peek(&self.cx.m).map(|global| &global.0) {
            Some(Value::Macro(it)) => Meaning::Macro(it.clone(), None),
            Some(Value::Special(it)) => Meaning::Special(*it),
            _ => Meaning::Global(symbol.clone()),
        }
    }

    pub fn is_same(&self, a: &Gc<Symbol>, a_env: &Env, b: &Gc<Symbol>, b_env: &Env) -> bool {
        self.meaning(a, a_env).is_same(&self.meaning(b, b_env))
    }

    /// Whether the form is the symbol, as at the outermost level.
    pub fn is_word(&self, form: &Value, word: &str, env: &Env) -> bool {
        let Value::Symbol(symbol) = form else { return false };
        matches!(self.meaning(symbol, env), Meaning::Global(it) if it.name == word)
    }

    /// The datum without aliases. A datum without any is returned as it is, circular ones too.
    pub fn strip(&self, form: &Value) -> Value {
        if self.has_alias(form, &mut HashSet::new()) { self.copy_plain(form) } else { form.clone() }
    }

    fn has_alias(&self, form: &Value, seen: &mut HashSet<Gc<Pair>>) -> bool {
        let m = &self.cx.m;
        let mut at = form.clone();
        while let Value::Pair(pair) = &at {
            if !seen.insert(pair.clone()) {
                return false;
            }
            let (head, tail) = pair.ends.get(m);
            if self.has_alias(&head, seen) {
                return true;
            }
            at = tail;
        }
        match &at {
            Value::Symbol(symbol) => symbol.base.is_some(),
            Value::Vector(vector) => {
                vector.items.get(m).iter().any(|item| self.has_alias(item, seen))
            }
            _ => false,
        }
    }

    fn copy_plain(&self, form: &Value) -> Value {
        let m = &self.cx.m;
        match form {
            Value::Symbol(symbol) => {
                let mut symbol = symbol;
                while let Some(base) = &symbol.base {
                    symbol = base;
                }
                Value::Symbol(symbol.clone())
            }
            Value::Pair(_) => {
                let (items, end) = form.items(m);
                let items: Vec<Value> = items.iter().map(|item| self.copy_plain(item)).collect();
                Value::list_to(m, items, self.copy_plain(&end))
            }
            Value::Vector(vector) => {
                let items = vector.items.get(m);
                Value::vector(m, items.iter().map(|item| self.copy_plain(item)).collect())
            }
            _ => form.clone(),
        }
    }

    pub fn expand(&mut self, form: &Value, env: &Env) -> Res<Node> {
        match form {
            Value::Symbol(symbol) => match self.meaning(symbol, env) {
                Meaning::Local(var) => {
                    self.uses[var] += 1;
                    Ok(Node::Local(var))
                }
                Meaning::Global(symbol) => Ok(Node::Global(symbol)),
                _ => self.fail("a keyword is no expression:", form),
            },
            Value::Pair(pair) => {
                let (head, tail) = pair.ends.get(&self.cx.m);
                if let Value::Symbol(symbol) = &head {
                    match self.meaning(symbol, env) {
                        Meaning::Special(special) => {
                            let Some(parts) = tail.proper(&self.cx.m) else {
                                return self.fail("a form must be a proper list:", form);
                            };
                            return self.special(special, form, &parts, env);
                        }
                        Meaning::Macro(it, scope) => {
                            let expanded = self.apply_macro(&it, &scope, form, env)?;
                            return self.expand(&expanded, env);
                        }
                        _ => {}
                    }
                }
                let Some(arguments) = tail.proper(&self.cx.m) else {
                    return self.fail("a call must be a proper list:", form);
                };
                self.call(&head, &arguments, env)
            }
            Value::Nil => self.fail("the empty list is no expression:", form),
            _ => Ok(Node::Const(form.clone())),
        }
    }

    fn call(&mut self, head: &Value, arguments: &[Value], env: &Env) -> Res<Node> {
        let callee = self.expand(head, env)?;
        let arguments = self.expand_all(arguments, env)?;
        // `((lambda (x ...) body) value ...)`
        match callee {
            Node::Lambda(lambda) if !lambda.rest && lambda.parameters.len() == arguments.len() => {
                let bindings = lambda.parameters.into_iter().zip(arguments).collect();
                Ok(Node::Let(bindings, Box::new(lambda.body)))
            }
            callee => Ok(Node::Call(Box::new(callee), arguments)),
        }
    }

    pub fn expand_all(&mut self, forms: &[Value], env: &Env) -> Res<Vec<Node>> {
        forms.iter().map(|form| self.expand(form, env)).collect()
    }

    fn special(&mut self, special: Special, form: &Value, parts: &[Value], env: &Env) -> Res<Node> {
        match (special, parts) {
            (Special::Quote, [datum]) => Ok(Node::Const(self.strip(datum))),
            (Special::Quasiquote, [template]) => self.quasi(template, 1, env),
            (Special::If, [test, then]) => {
                Ok(if_node(self.expand(test, env)?, self.expand(then, env)?, nothing()))
            }
            (Special::If, [test, then, otherwise]) => Ok(if_node(
                self.expand(test, env)?,
                self.expand(then, env)?,
                self.expand(otherwise, env)?,
            )),
            (Special::Lambda, [parameters, body @ ..]) => {
                self.lambda("", parameters, body, env).map(lambda_node)
            }
            (Special::CaseLambda, clauses) => {
                let mut cases = Vec::new();
                for clause in clauses {
                    let Some((parameters, body)) = clause.ends(&self.cx.m) else {
                        return self.fail("a clause must be a list:", form);
                    };
                    let body = body.proper(&self.cx.m).unwrap_or_default();
                    cases.push(lambda_node(self.lambda("", &parameters, &body, env)?));
                }
                Ok(Node::Cases(cases))
            }
            (Special::Set, [Value::Symbol(symbol), value]) => {
                let value = self.expand(value, env)?;
                match self.meaning(symbol, env) {
                    Meaning::Local(var) => {
                        (self.boxed[var], self.uses[var]) = (true, self.uses[var] + 1);
                        Ok(Node::SetLocal(var, Box::new(value)))
                    }
                    Meaning::Global(symbol) => Ok(Node::SetGlobal(symbol, Box::new(value))),
                    _ => self.fail("a keyword cannot be assigned:", form),
                }
            }
            (Special::Begin, []) => Ok(nothing()),
            (Special::Begin, forms) => self.sequence(forms, env),
            (Special::And, []) => Ok(Node::Const(Value::Bool(true))),
            (Special::And, [first @ .., last]) => {
                let last = self.expand(last, env)?;
                first.iter().rev().try_fold(last, |rest, form| {
                    Ok(if_node(self.expand(form, env)?, rest, Node::Const(Value::Bool(false))))
                })
            }
            (Special::Or, []) => Ok(Node::Const(Value::Bool(false))),
            (Special::Or, forms) => Ok(Node::Or(self.expand_all(forms, env)?)),
            (Special::When, [test, body @ ..]) => {
                Ok(if_node(self.expand(test, env)?, self.sequence(body, env)?, nothing()))
            }
            (Special::Unless, [test, body @ ..]) => {
                Ok(if_node(self.expand(test, env)?, nothing(), self.sequence(body, env)?))
            }
            (Special::Cond, clauses) => self.cond(clauses, form, env),
            (Special::Case, [key, clauses @ ..]) => self.case(key, clauses, form, env),
            (Special::Let, [Value::Symbol(name), bindings, body @ ..]) => {
                let pairs = self.bindings(bindings, form)?;
                let first: Vec<Value> = pairs.iter().map(|(_, value)| value.clone()).collect();
                let first = self.expand_all(&first, env)?;
                let scope = self.scope(env);
                let var = self.variable(name, &scope);
                let parameters = pairs.into_iter().map(|(name, _)| name).collect();
                let lambda = self.procedure(&name.name, parameters, false, body, &Some(scope))?;
                Ok(self.named_let(var, lambda, first))
            }
            (Special::Let, [bindings, body @ ..]) => {
                let (scope, mut nodes) = (self.scope(env), Vec::new());
                for (name, value) in self.bindings(bindings, form)? {
                    let value = self.expand(&value, env)?;
                    nodes.push((self.variable(&name, &scope), value));
                }
                let body = self.body(body, form, Some(scope))?;
                Ok(Node::Let(nodes, Box::new(body)))
            }
            (Special::LetStar, [bindings, body @ ..]) => {
                let (mut env, mut nodes) = (Some(self.scope(env)), Vec::new());
                for (name, value) in self.bindings(bindings, form)? {
                    let value = self.expand(&value, &env)?;
                    let scope = self.scope(&env);
                    nodes.push((self.variable(&name, &scope), value));
                    env = Some(scope);
                }
                let body = self.body(body, form, env)?;
                Ok(nodes
                    .into_iter()
                    .rev()
                    .fold(body, |body, binding| Node::Let(vec![binding], Box::new(body))))
            }
            (Special::Letrec, [bindings, body @ ..]) => {
                let scope = self.scope(env);
                let pairs = self.bindings(bindings, form)?;
                let pairs = pairs.into_iter().map(|(name, value)| {
                    let var = self.variable(&name, &scope);
                    (var, Definition::Value(value))
                });
                let pairs = pairs.collect();
                let rest = body.to_vec();
                self.recursive(pairs, &rest, form, &Some(scope))
            }
            (Special::Do, [bindings, end, body @ ..]) => {
                self.do_loop(bindings, end, body, form, env)
            }
            (Special::Delay | Special::DelayForce, [body]) => {
                let thunk = self.lambda("promise", &Value::Nil, std::slice::from_ref(body), env)?;
                let name = if special == Special::Delay { "%delay" } else { "%delay-force" };
                Ok(Node::Call(Box::new(self.core(name)), vec![lambda_node(thunk)]))
            }
            (Special::LetSyntax, [bindings, body @ ..]) => {
                let scope = Some(self.scope(env));
                for (name, rules) in self.bindings(bindings, form)? {
                    self.define_macro(&name, &rules, &scope)?;
                }
                self.body(body, form, scope)
            }
            (Special::DefineSyntax, [Value::Symbol(name), rules]) if env.is_none() => {
                self.define_macro(name, rules, env)?;
                Ok(nothing())
            }
            (Special::Define, [_, ..]) if env.is_none() => {
                let (name, definition) = self.definition(parts, form)?;
                let Meaning::Global(symbol) = self.global(&name) else { unreachable!() };
                let value = self.defined(&symbol.name, &definition, env)?;
                Ok(Node::Define(symbol, Box::new(value)))
            }
            (Special::DefineRecord, _) if env.is_none() => {
                let forms = self.record(parts, form)?;
                self.sequence(&forms, env)
            }
            (Special::CondExpand, clauses) => {
                let forms = self.cond_expand(clauses, form)?;
                if forms.is_empty() { Ok(nothing()) } else { self.sequence(&forms, env) }
            }
            (Special::Include, [Value::Str(name)]) => {
                let name: String = name.chars.get(&self.cx.m).into_iter().collect();
                let forms = self.cx.read_file(&name)?;
                if forms.is_empty() { Ok(nothing()) } else { self.sequence(&forms, env) }
            }
            // All of the language is there from the start.
            (Special::Import, _) => Ok(nothing()),
            (Special::Define | Special::DefineSyntax | Special::DefineRecord, _) => {
                self.fail("a definition stands in the wrong place:", form)
            }
            _ => self.fail("bad syntax:", form),
        }
    }

    /// A procedure or syntax of the outermost level, whatever the name means in the scope.
    pub fn core(&self, name: &str) -> Node {
        Node::Global(self.cx.rt.symbols.intern(&self.cx.m, name))
    }

    fn global(&self, name: &Gc<Symbol>) -> Meaning {
        let Value::Symbol(symbol) = self.strip(&Value::Symbol(name.clone())) else {
            unreachable!("a symbol without aliases is a symbol")
        };
        Meaning::Global(symbol)
    }

    pub fn sequence(&mut self, forms: &[Value], env: &Env) -> Res<Node> {
        let mut nodes = self.expand_all(forms, env)?;
        Ok(match nodes.len() {
            0 => nothing(),
            1 => nodes.remove(0),
            _ => Node::Seq(nodes),
        })
    }

    fn bindings(&self, bindings: &Value, form: &Value) -> Res<Vec<(Gc<Symbol>, Value)>> {
        let m = &self.cx.m;
        let read = |binding: &Value| match &binding.proper(m)?[..] {
            [Value::Symbol(name), value] => Some((name.clone(), value.clone())),
            _ => None,
        };
        let list = bindings.proper(m);
        match list.and_then(|list| list.iter().map(read).collect()) {
            Some(bindings) => Ok(bindings),
            None => self.fail("bad bindings:", form),
        }
    }

    fn lambda(&mut self, name: &str, parameters: &Value, body: &[Value], env: &Env) -> Res<Lambda> {
        let (names, rest) = parameters.items(&self.cx.m);
        let has_rest = !matches!(rest, Value::Nil);
        let names = names.into_iter().chain(has_rest.then_some(rest)).map(|name| match name {
            Value::Symbol(name) => Ok(name),
            other => self.fail("a parameter must be a symbol:", &other),
        });
        let names: Vec<_> = names.collect::<Res<_>>()?;
        self.procedure(name, names, has_rest, body, env)
    }

    fn procedure(
        &mut self,
        name: &str,
        parameters: Vec<Gc<Symbol>>,
        rest: bool,
        body: &[Value],
        env: &Env,
    ) -> Res<Lambda> {
        let scope = self.scope(env);
        let parameters = parameters.iter().map(|it| self.variable(it, &scope)).collect();
        let form = Value::list(&self.cx.m, body.to_vec());
        let body = self.body(body, &form, Some(scope))?;
        Ok(Lambda { name: name.to_string(), parameters, rest, body })
    }

    /// A body: definitions and expressions.
    fn body(&mut self, forms: &[Value], form: &Value, env: Env) -> Res<Node> {
        let scope = env.as_ref().expect("a body has a scope").clone();
        let mut queue: Vec<Value> = forms.iter().rev().cloned().collect();
        let (mut definitions, mut expressions) = (Vec::new(), Vec::new());
        while let Some(next) = queue.pop() {
            let Some((Value::Symbol(head), tail)) = next.ends(&self.cx.m) else {
                expressions.push(next);
                continue;
            };
            let parts = tail.proper(&self.cx.m).unwrap_or_default();
            let more = match self.meaning(&head, &env) {
                Meaning::Macro(it, at) => vec![self.apply_macro(&it, &at, &next, &env)?],
                Meaning::Special(Special::Begin) if !parts.is_empty() => parts,
                Meaning::Special(Special::DefineRecord) => self.record(&parts, &next)?,
                Meaning::Special(Special::CondExpand) => self.cond_expand(&parts, &next)?,
                Meaning::Special(Special::Define) => {
                    // Expressions before a definition are values of variables that have no name.
                    for expression in expressions.drain(..) {
                        let name = self.cx.rt.symbols.fresh(&self.cx.m, "", None);
                        let value = Definition::Value(expression);
                        definitions.push((self.variable(&name, &scope), value));
                    }
                    let (name, definition) = self.definition(&parts, &next)?;
                    definitions.push((self.variable(&name, &scope), definition));
                    continue;
                }
                Meaning::Special(Special::DefineSyntax) => {
                    let [Value::Symbol(name), rules] = &parts[..] else {
                        return self.fail("bad syntax:", &next);
                    };
                    self.define_macro(name, rules, &env)?;
                    continue;
                }
                _ => {
                    expressions.push(next);
                    continue;
                }
            };
            queue.extend(more.into_iter().rev());
        }
        if definitions.is_empty() {
            if expressions.is_empty() {
                return self.fail("an empty body:", form);
            }
            return self.sequence(&expressions, &env);
        }
        self.recursive(definitions, &expressions, form, &env)
    }

    /// `letrec*`: the variables exist already.
    fn recursive(
        &mut self,
        definitions: Vec<(Var, Definition)>,
        body: &[Value],
        form: &Value,
        env: &Env,
    ) -> Res<Node> {
        let mut bindings = Vec::new();
        for (var, definition) in definitions {
            // A variable that was used by now is captured before it has its value.
            self.boxed[var] |= self.uses[var] > 0;
            let name = self.names[var].name.clone();
            let value = self.defined(&name, &definition, env)?;
            // A procedure may use itself.
            self.boxed[var] |= self.uses[var] > 0 && !matches!(value, Node::Lambda(_));
            bindings.push((var, value));
        }
        let inner = Some(self.scope(env));
        let body = if body.is_empty() { nothing() } else { self.body(body, form, inner)? };
        if let ([(var, Node::Lambda(_))], Node::Call(callee, _)) = (&bindings[..], &body)
            && matches!(&**callee, Node::Local(it) if it == var)
        {
            let (Some((var, Node::Lambda(lambda))), Node::Call(_, first)) = (bindings.pop(), body)
            else {
                unreachable!("matched above")
            };
            self.uses[var] -= 1; // `named_let` counts it
            return Ok(self.named_let(var, *lambda, first));
        }
        Ok(Node::Letrec(bindings, Box::new(body)))
    }

    /// A procedure and its first call, which is a loop if all other calls are in tail positions.
    pub fn named_let(&mut self, var: Var, lambda: Lambda, first: Vec<Node>) -> Node {
        let is_loop = !self.boxed[var]
            && !lambda.rest
            && lambda.parameters.len() == first.len()
            && jumps(&lambda.body, var, first.len()) == self.uses[var];
        self.uses[var] += 1;
        if is_loop {
            let Lambda { parameters, body, .. } = lambda;
            return Node::Loop { name: var, variables: parameters, first, body: Box::new(body) };
        }
        // The arguments have been expanded in the outer scope, so they cannot see the name.
        let call = Node::Call(Box::new(Node::Local(var)), first);
        Node::Letrec(vec![(var, lambda_node(lambda))], Box::new(call))
    }

    fn definition(&self, parts: &[Value], form: &Value) -> Res<(Gc<Symbol>, Definition)> {
        match parts {
            [Value::Symbol(name)] => Ok((name.clone(), Definition::Value(Value::Unspecified))),
            [Value::Symbol(name), value] => Ok((name.clone(), Definition::Value(value.clone()))),
            [Value::Pair(target), body @ ..] => {
                let (head, parameters) = target.ends.get(&self.cx.m);
                match head {
                    Value::Symbol(name) => {
                        Ok((name, Definition::Procedure(parameters, body.to_vec())))
                    }
                    // `(define ((f a) b) ...)`: a procedure that returns one.
                    Value::Pair(_) => {
                        let lambda = self.cx.rt.symbols.intern(&self.cx.m, "lambda");
                        let inner = Value::list(&self.cx.m, body.to_vec());
                        let inner = Value::cons(&self.cx.m, parameters, inner);
                        let inner = Value::cons(&self.cx.m, Value::Symbol(lambda), inner);
                        self.definition(&[head, inner], form)
                    }
                    _ => self.fail("bad definition:", form),
                }
            }
            _ => self.fail("bad definition:", form),
        }
    }

    fn defined(&mut self, name: &str, definition: &Definition, env: &Env) -> Res<Node> {
        match definition {
            Definition::Procedure(parameters, body) => {
                self.lambda(name, parameters, body, env).map(lambda_node)
            }
            Definition::Value(value) => Ok(match self.expand(value, env)? {
                Node::Lambda(mut lambda) if lambda.name.is_empty() => {
                    lambda.name = name.to_string();
                    Node::Lambda(lambda)
                }
                other => other,
            }),
        }
    }

    fn define_macro(&mut self, name: &Gc<Symbol>, rules: &Value, env: &Env) -> Res<()> {
        let it = Value::Macro(self.rules(rules, env)?);
        let Value::Macro(made) = &it else { unreachable!("made above") };
        match env {
            Some(scope) => {
                let meaning = Meaning::Macro(made.clone(), env.clone());
                scope.names.borrow_mut().push((name.clone(), meaning));
            }
            None => {
                let Meaning::Global(symbol) = self.global(name) else { unreachable!() };
                self.cx.define(&symbol, it);
            }
        }
        Ok(())
    }
}

enum Definition {
    Value(Value),
    Procedure(Value, Vec<Value>),
}

pub fn nothing() -> Node {
    Node::Const(Value::Unspecified)
}

pub fn if_node(test: Node, then: Node, otherwise: Node) -> Node {
    Node::If(Box::new([test, then, otherwise]))
}

fn lambda_node(lambda: Lambda) -> Node {
    Node::Lambda(Box::new(lambda))
}

/// The number of calls of `name` with `count` arguments in tail positions.
fn jumps(node: &Node, name: Var, count: usize) -> usize {
    match node {
        Node::Call(callee, arguments) => usize::from(
            matches!(&**callee, Node::Local(it) if *it == name) && arguments.len() == count,
        ),
        Node::If(parts) => jumps(&parts[1], name, count) + jumps(&parts[2], name, count),
        Node::Or(nodes) | Node::Seq(nodes) => nodes.last().map_or(0, |it| jumps(it, name, count)),
        Node::Let(_, body) | Node::Letrec(_, body) | Node::Loop { body, .. } => {
            jumps(body, name, count)
        }
        _ => 0,
    }
}
