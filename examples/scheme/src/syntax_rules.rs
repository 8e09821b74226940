//! `syntax-rules`: patterns and templates.

use std::collections::HashMap;

use standstill::Gc;

use crate::symbol::Symbol;
use crate::syntax::{Env, Expander, Macro};
use crate::value::{Res, Value};

/// What a variable of a pattern has matched.
#[derive(Clone)]
enum Match {
    One(Value),
    Many(Vec<Matches>),
}

type Matches = HashMap<Gc<Symbol>, Match>;

impl Expander<'_> {
    /// The macro that `(syntax-rules ...)` describes.
    pub fn rules(&self, spec: &Value, env: &Env) -> Res<Gc<Macro>> {
        let m = &self.cx.m;
        let parts = spec.proper(m).unwrap_or_default();
        let symbol = |value: &Value| match value {
            Value::Symbol(symbol) => Some(symbol.clone()),
            _ => None,
        };
        let head = parts.first().and_then(symbol);
        match head {
            Some(head) if self.name(&head) == "syntax-rules" => {}
            // Another name for a macro that exists.
            _ => {
                if let Some(name) = symbol(spec)
                    && let crate::syntax::Meaning::Macro(it, None) = self.meaning(&name, env)
                {
                    return Ok(it);
                }
                return self.fail("syntax-rules expected:", spec);
            }
        }
        let (ellipsis, rest) = match parts.get(1) {
            Some(Value::Symbol(ellipsis)) => (ellipsis.clone(), &parts[2..]),
            _ => (self.cx.rt.symbols.intern(m, "..."), &parts[1..]),
        };
        let Some((literals, rules)) = rest.split_first() else {
            return self.fail("bad syntax:", spec);
        };
        let literals = literals.proper(m).and_then(|list| list.iter().map(symbol).collect());
        let rules = rules.iter().map(|rule| match &rule.proper(m)?[..] {
            [pattern, template] => Some((pattern.clone(), template.clone())),
            _ => None,
        });
        match (literals, rules.collect()) {
            (Some(literals), Some(rules)) => Ok(m.alloc(Macro { ellipsis, literals, rules })),
            _ => self.fail("bad syntax:", spec),
        }
    }

    fn name<'s>(&self, symbol: &'s Gc<Symbol>) -> &'s str {
        &symbol.name
    }

    fn is_ellipsis(&self, it: &Macro, form: &Value) -> bool {
        let Value::Symbol(symbol) = form else { return false };
        if symbol == &it.ellipsis {
            return true;
        }
        // The template of a macro that defines macros has an alias for it.
        symbol.name == it.ellipsis.name && !it.literals.contains(symbol)
    }

    pub fn apply_macro(
        &mut self,
        it: &Gc<Macro>,
        scope: &Env,
        form: &Value,
        env: &Env,
    ) -> Res<Value> {
        let m = &self.cx.m;
        let (_, arguments) = form.ends(m).expect("a macro's form is a pair");
        for (pattern, template) in &it.rules {
            // The first part of a pattern stands for the macro's name.
            let Some((_, pattern)) = pattern.ends(m) else { continue };
            let mut matches = Matches::new();
            if self.matches(it, scope, &pattern, &arguments, env, &mut matches) {
                let mut aliases = HashMap::new();
                return self.fill(it, scope, template, &matches, &mut aliases);
            }
        }
        self.fail("no rule of the macro fits:", form)
    }

    fn matches(
        &self,
        it: &Macro,
        scope: &Env,
        pattern: &Value,
        form: &Value,
        env: &Env,
        into: &mut Matches,
    ) -> bool {
        let m = &self.cx.m;
        match pattern {
            Value::Symbol(symbol) if it.literals.contains(symbol) => {
                matches!(form, Value::Symbol(other) if self.is_same(other, env, symbol, scope))
            }
            Value::Symbol(symbol) => {
                if self.name(symbol) != "_" {
                    into.insert(symbol.clone(), Match::One(form.clone()));
                }
                true
            }
            Value::Pair(_) => {
                let (head, tail) = pattern.ends(m).expect("a pair");
                let after = tail.ends(m).filter(|(next, _)| self.is_ellipsis(it, next));
                let Some((_, after)) = after else {
                    return form.ends(m).is_some_and(|(first, rest)| {
                        self.matches(it, scope, &head, &first, env, into)
                            && self.matches(it, scope, &tail, &rest, env, into)
                    });
                };
                let (items, end) = form.items(m);
                let Some(count) = items.len().checked_sub(after.items(m).0.len()) else {
                    return false;
                };
                let mut many = Vec::new();
                for item in &items[..count] {
                    let mut one = Matches::new();
                    if !self.matches(it, scope, &head, item, env, &mut one) {
                        return false;
                    }
                    many.push(one);
                }
                for name in self.variables(it, &head) {
                    into.insert(name, Match::Many(many.clone()));
                }
                let rest = Value::list_to(m, items[count..].to_vec(), end);
                self.matches(it, scope, &after, &rest, env, into)
            }
            Value::Vector(vector) => {
                let Value::Vector(other) = form else { return false };
                let (pattern, form) = (vector.items.get(m), other.items.get(m));
                let (pattern, form) = (Value::list(m, pattern), Value::list(m, form));
                self.matches(it, scope, &pattern, &form, env, into)
            }
            _ => pattern.is_equal(form, m),
        }
    }

    fn variables(&self, it: &Macro, pattern: &Value) -> Vec<Gc<Symbol>> {
        match pattern {
            Value::Symbol(symbol) => vec![symbol.clone()],
            Value::Pair(_) => {
                let (items, end) = pattern.items(&self.cx.m);
                let all = items.iter().chain([&end]).filter(|item| !self.is_ellipsis(it, item));
                all.flat_map(|item| self.variables(it, item)).collect()
            }
            Value::Vector(vector) => {
                let items = vector.items.get(&self.cx.m);
                items.iter().flat_map(|item| self.variables(it, item)).collect()
            }
            _ => Vec::new(),
        }
    }

    fn fill(
        &mut self,
        it: &Macro,
        scope: &Env,
        template: &Value,
        matches: &Matches,
        aliases: &mut HashMap<Gc<Symbol>, Gc<Symbol>>,
    ) -> Res<Value> {
        match template {
            Value::Symbol(symbol) => Ok(match matches.get(symbol) {
                Some(Match::One(value)) => value.clone(),
                Some(Match::Many(_)) => {
                    return self.fail("an ellipsis is missing after:", template);
                }
                None => match aliases.get(symbol) {
                    Some(alias) => Value::Symbol(alias.clone()),
                    None => {
                        let alias = self.alias(symbol, scope);
                        aliases.insert(symbol.clone(), alias.clone());
                        Value::Symbol(alias)
                    }
                },
            }),
            Value::Vector(vector) => {
                let list = Value::list(&self.cx.m, vector.items.get(&self.cx.m));
                let filled = self.fill(it, scope, &list, matches, aliases)?;
                let items = filled.proper(&self.cx.m).unwrap_or_default();
                Ok(Value::vector(&self.cx.m, items))
            }
            Value::Pair(_) => {
                let (head, mut tail) = template.ends(&self.cx.m).expect("a pair");
                if self.is_ellipsis(it, &head) {
                    // `(... template)`: an ellipsis stands for itself there.
                    let Some((inner, _)) = tail.ends(&self.cx.m) else {
                        return self.fail("bad template:", template);
                    };
                    let none = self.cx.rt.symbols.fresh(&self.cx.m, "", None);
                    let (literals, rules) = (it.literals.clone(), Vec::new());
                    let plain = Macro { ellipsis: none, literals, rules };
                    return self.fill(&plain, scope, &inner, matches, aliases);
                }
                let mut depth = 0;
                while let Some((next, after)) = tail.ends(&self.cx.m) {
                    if !self.is_ellipsis(it, &next) {
                        break;
                    }
                    (depth, tail) = (depth + 1, after);
                }
                let mut heads = Vec::new();
                self.repeat(it, scope, &head, depth, matches, aliases, &mut heads)?;
                let tail = self.fill(it, scope, &tail, matches, aliases)?;
                Ok(Value::list_to(&self.cx.m, heads, tail))
            }
            _ => Ok(template.clone()),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the recursion needs all of them")]
    fn repeat(
        &mut self,
        it: &Macro,
        scope: &Env,
        template: &Value,
        depth: usize,
        matches: &Matches,
        aliases: &mut HashMap<Gc<Symbol>, Gc<Symbol>>,
        into: &mut Vec<Value>,
    ) -> Res<()> {
        if depth == 0 {
            into.push(self.fill(it, scope, template, matches, aliases)?);
            return Ok(());
        }
        let variables = self.variables(it, template);
        let many: Vec<_> = variables
            .iter()
            .filter_map(|name| match matches.get(name) {
                Some(Match::Many(many)) => Some((name, many)),
                _ => None,
            })
            .collect();
        let Some(count) = many.iter().map(|(_, many)| many.len()).max() else {
            return self.fail("nothing to repeat in:", template);
        };
        for i in 0..count {
            let mut inner = matches.clone();
            for (name, many) in &many {
                let Some(found) = many.get(i).and_then(|one| one.get(*name)) else {
                    return self.fail("ellipses of different lengths in:", template);
                };
                inner.insert((*name).clone(), found.clone());
            }
            self.repeat(it, scope, template, depth - 1, &inner, aliases, into)?;
        }
        Ok(())
    }
}
