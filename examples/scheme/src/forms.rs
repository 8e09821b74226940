//! The special forms that other forms could express, but that are here for their speed.

use crate::code::{Lambda, Node, Special};
use crate::syntax::{Env, Expander, Meaning, if_node, nothing};
use crate::value::{Res, Value};

impl Expander<'_> {
    pub fn cond(&mut self, clauses: &[Value], form: &Value, env: &Env) -> Res<Node> {
        let mut node = nothing();
        for (i, clause) in clauses.iter().enumerate().rev() {
            let Some(parts) = clause.proper(&self.cx.m) else {
                return self.fail("bad clause:", form);
            };
            node = match &parts[..] {
                [test, body @ ..] if i + 1 == clauses.len() && self.is_word(test, "else", env) => {
                    self.sequence(body, env)?
                }
                [test] => Node::Or(vec![self.expand(test, env)?, node]),
                [test, arrow, receiver] if self.is_word(arrow, "=>", env) => {
                    let test = self.expand(test, env)?;
                    let scope = self.scope(env);
                    let name = self.cx.rt.symbols.fresh(&self.cx.m, "test", None);
                    let var = self.variable(&name, &scope);
                    let receiver = self.expand(receiver, env)?;
                    let call = Node::Call(Box::new(receiver), vec![Node::Local(var)]);
                    let choice = if_node(Node::Local(var), call, node);
                    Node::Let(vec![(var, test)], Box::new(choice))
                }
                [test, body @ ..] => {
                    if_node(self.expand(test, env)?, self.sequence(body, env)?, node)
                }
                [] => return self.fail("bad clause:", form),
            };
        }
        Ok(node)
    }

    pub fn case(&mut self, key: &Value, clauses: &[Value], form: &Value, env: &Env) -> Res<Node> {
        let key = self.expand(key, env)?;
        let scope = self.scope(env);
        let name = self.cx.rt.symbols.fresh(&self.cx.m, "key", None);
        let var = self.variable(&name, &scope);
        let mut node = nothing();
        for (i, clause) in clauses.iter().enumerate().rev() {
            let Some(parts) = clause.proper(&self.cx.m) else {
                return self.fail("bad clause:", form);
            };
            let [data, body @ ..] = &parts[..] else { return self.fail("bad clause:", form) };
            let body = match body {
                [arrow, receiver] if self.is_word(arrow, "=>", env) => {
                    let receiver = self.expand(receiver, env)?;
                    Node::Call(Box::new(receiver), vec![Node::Local(var)])
                }
                body => self.sequence(body, env)?,
            };
            if i + 1 == clauses.len() && self.is_word(data, "else", env) {
                node = body;
                continue;
            }
            let Some(data) = self.strip(data).proper(&self.cx.m) else {
                return self.fail("bad clause:", form);
            };
            let tests = data.into_iter().map(|datum| {
                let arguments = vec![Node::Local(var), Node::Const(datum)];
                Node::Call(Box::new(self.core("eqv?")), arguments)
            });
            let tests: Vec<Node> = tests.collect();
            node = match tests.len() {
                0 => node,
                _ => if_node(Node::Or(tests), body, node),
            };
        }
        Ok(Node::Let(vec![(var, key)], Box::new(node)))
    }

    pub fn do_loop(
        &mut self,
        bindings: &Value,
        end: &Value,
        body: &[Value],
        form: &Value,
        env: &Env,
    ) -> Res<Node> {
        let m = &self.cx.m;
        let specs = bindings.proper(m).unwrap_or_default();
        let specs: Vec<Vec<Value>> = specs.iter().filter_map(|it| it.proper(m)).collect();
        let end = end.proper(m).unwrap_or_default();
        let [test, results @ ..] = &end[..] else { return self.fail("bad syntax:", form) };
        let mut first = Vec::new();
        let outer = self.scope(env);
        let name = self.cx.rt.symbols.fresh(&self.cx.m, "do", None);
        let var = self.variable(&name, &outer);
        let scope = self.scope(env);
        let mut variables = Vec::new();
        for spec in &specs {
            let [Value::Symbol(name), value, ..] = &spec[..] else {
                return self.fail("bad bindings:", form);
            };
            first.push(self.expand(value, env)?);
            variables.push(self.variable(name, &scope));
        }
        let env = Some(scope);
        let test = self.expand(test, &env)?;
        let results = self.sequence(results, &env)?;
        let mut nodes = self.expand_all(body, &env)?;
        let mut next = Vec::new();
        for (spec, variable) in specs.iter().zip(&variables) {
            next.push(match spec.get(2) {
                Some(step) => self.expand(step, &env)?,
                None => Node::Local(*variable),
            });
        }
        self.uses[var] += 1;
        nodes.push(Node::Call(Box::new(Node::Local(var)), next));
        let body = if_node(test, results, Node::Seq(nodes));
        let lambda = Lambda { name: "do".to_string(), parameters: variables, rest: false, body };
        Ok(self.named_let(var, lambda, first))
    }

    pub fn quasi(&mut self, template: &Value, depth: usize, env: &Env) -> Res<Node> {
        let m = &self.cx.m;
        match template {
            Value::Pair(_) => {}
            Value::Vector(vector) => {
                let list = Value::list(m, vector.items.get(m));
                let node = self.quasi(&list, depth, env)?;
                return Ok(match node {
                    Node::Const(list) => Node::Const(Value::vector(
                        &self.cx.m,
                        list.proper(&self.cx.m).unwrap_or_default(),
                    )),
                    node => Node::Call(Box::new(self.core("list->vector")), vec![node]),
                });
            }
            _ => return Ok(Node::Const(self.strip(template))),
        }
        let (head, tail) = template.ends(m).expect("a pair");
        let rest = tail.ends(m).filter(|(_, end)| matches!(end, Value::Nil)).map(|(it, _)| it);
        if let Some(inner) = &rest {
            let is_unquote = self.is_word(&head, "unquote", env);
            let is_nested = matches!(&head, Value::Symbol(symbol)
                if matches!(self.meaning(symbol, env), Meaning::Special(Special::Quasiquote)));
            if is_unquote && depth == 1 {
                return self.expand(inner, env);
            }
            if is_unquote || is_nested {
                let depth = if is_unquote { depth - 1 } else { depth + 1 };
                let inner = self.quasi(inner, depth, env)?;
                let arguments = vec![Node::Const(self.strip(&head)), inner];
                return Ok(Node::Call(Box::new(self.core("list")), arguments));
            }
        }
        if let Some((word, spliced)) = head.ends(&self.cx.m)
            && depth == 1
            && self.is_word(&word, "unquote-splicing", env)
            && let Some((spliced, Value::Nil)) = spliced.ends(&self.cx.m)
        {
            let spliced = self.expand(&spliced, env)?;
            let rest = self.quasi(&tail, depth, env)?;
            return Ok(match rest {
                Node::Const(Value::Nil) => spliced,
                rest => Node::Call(Box::new(self.core("append")), vec![spliced, rest]),
            });
        }
        let (head, tail) = (self.quasi(&head, depth, env)?, self.quasi(&tail, depth, env)?);
        Ok(match (&head, &tail) {
            (Node::Const(head), Node::Const(tail)) => {
                Node::Const(Value::cons(&self.cx.m, head.clone(), tail.clone()))
            }
            _ => Node::Call(Box::new(self.core("cons")), vec![head, tail]),
        })
    }

    /// The definitions of a record type.
    pub fn record(&mut self, parts: &[Value], form: &Value) -> Res<Vec<Value>> {
        let m = &self.cx.m;
        let symbol = |name: &str| {
            let base = self.cx.rt.symbols.intern(m, name);
            Value::Symbol(self.cx.rt.symbols.fresh(m, name, Some(base)))
        };
        let list = |items: &[Value]| Value::list(m, items.to_vec());
        let [name, constructor, predicate, specs @ ..] = parts else {
            return self.fail("bad syntax:", form);
        };
        let (define, quote) = (symbol("define"), symbol("quote"));
        let name = name.ends(m).map_or(name.clone(), |(name, _)| name);
        let mut fields = Vec::new();
        let mut forms = Vec::new();
        for (at, spec) in specs.iter().enumerate() {
            let spec = spec.proper(m).unwrap_or_else(|| vec![spec.clone()]);
            let [field, procedures @ ..] = &spec[..] else {
                return self.fail("bad field:", form);
            };
            fields.push(field.clone());
            for (procedure, maker) in procedures.iter().zip(["%record-getter", "%record-setter"]) {
                let value = list(&[symbol(maker), name.clone(), Value::from(at)]);
                forms.push(list(&[define.clone(), procedure.clone(), value]));
            }
        }
        let quoted = |datum: Value| list(&[quote.clone(), datum]);
        let all = Value::list(m, fields.clone());
        let value = list(&[symbol("%record-type"), quoted(name.clone()), quoted(all.clone())]);
        forms.insert(0, list(&[define.clone(), name.clone(), value]));
        if let Value::Symbol(_) = predicate {
            let value = list(&[symbol("%record-predicate"), name.clone()]);
            forms.push(list(&[define.clone(), predicate.clone(), value]));
        }
        let (maker, used) = match constructor.ends(m) {
            Some((maker, used)) => (maker, used),
            None => (constructor.clone(), all),
        };
        if let Value::Symbol(_) = maker {
            let value = list(&[symbol("%record-constructor"), name, quoted(used)]);
            forms.push(list(&[define, maker, value]));
        }
        Ok(forms)
    }

    pub fn cond_expand(&self, clauses: &[Value], form: &Value) -> Res<Vec<Value>> {
        for clause in clauses {
            let Some((requirement, body)) = clause.ends(&self.cx.m) else {
                return self.fail("bad clause:", form);
            };
            if self.has_feature(&self.strip(&requirement)) {
                return Ok(body.proper(&self.cx.m).unwrap_or_default());
            }
        }
        Ok(Vec::new())
    }

    fn has_feature(&self, requirement: &Value) -> bool {
        let m = &self.cx.m;
        if let Value::Symbol(symbol) = requirement {
            return matches!(
                &*symbol.name,
                "else" | "r7rs" | "full-unicode" | "ratios" | "standstill"
            );
        }
        let Some(parts) = requirement.proper(m) else { return false };
        match &parts[..] {
            [Value::Symbol(head), rest @ ..] => match &*head.name {
                "and" => rest.iter().all(|it| self.has_feature(it)),
                "or" => rest.iter().any(|it| self.has_feature(it)),
                "not" => !rest.iter().any(|it| self.has_feature(it)),
                "library" => true,
                _ => false,
            },
            _ => false,
        }
    }
}
