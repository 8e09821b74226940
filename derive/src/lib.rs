//! `#[derive(Trace)]` for [`standstill`](https://docs.rs/standstill).
//!
//! Use it through `standstill`, which re-exports it beside the trait. The macro forwards `traverse`
//! and `clear` to each field. The generated code has no `unsafe`. The macro works in three steps:
//! it reads the attributes into `Container` and `Field`, chooses the bounds, and writes the code.
//! It collects all mistakes, so one compilation reports them all.

#![forbid(unsafe_code)]

use proc_macro2::{Group, Ident, Span, TokenStream, TokenTree};
use quote::{format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::meta::ParseNestedMeta;
use syn::parse::ParseStream;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{
    Attribute, Data, DeriveInput, ExprPath, Fields, GenericArgument, GenericParam, Generics, Index,
    LitStr, Member, Path, PathArguments, Token, Type, WhereClause, WherePredicate, parse_quote,
    parse_quote_spanned,
};

/// Implements `Trace` for a struct or an enum by forwarding to its fields.
///
/// Every field's type must implement `Trace`, or the field must be skipped.
///
/// # On the type
///
/// * `#[trace(finalize)]`: objects of this type have a finalizer. It is the type's own function
///   `fn finalize(this: &Gc<Self>, m: &Mutator)`, which must exist.
/// * `#[trace(finalize = path)]`: the same, with any function of that signature.
/// * `#[trace(label = path)]`: objects have labels, for which only `Mutator::graph_with_labels`
///   asks. `path` is a function `fn(this: &Self, f: &mut fmt::Formatter<'_>) -> fmt::Result`.
/// * `#[trace(describe = path)]`: the names of a value's references, in place of those of its
///   fields. For example, an object of a language names them by the keys of its table. `path` is a
///   function `fn(this: &Self, tracer: &mut Tracer)`, under the rules of `Trace::describe`: it
///   visits every reference, and tells the memory outside the heap that the derive would tell.
/// * `#[trace(untracked)]`: values hold no references, so the collector never traverses them. A
///   field of a type that may hold references is a compile error. In a generic type, the error
///   appears where the type is used with such a parameter. A finalizer is allowed beside this
///   setting, but no collection finds the object unreachable.
/// * `#[trace(bound = "T: Bound, ...")]`: replaces the bounds that the derive adds.
/// * `#[trace(crate = path)]`: the path of `standstill`, if it is not `::standstill`.
///
/// # On a field
///
/// * `#[trace(skip)]`: the field is neither traversed nor cleared, its memory outside the heap is
///   not counted, and its type need not implement `Trace`. This is for types that hold no
///   references to objects. If the field's type may hold some, the type does not compile: see
///   below.
/// * `#[trace(skip, leaks_cycles)]`: as above, for a type that holds references. They count as held
///   from outside: their targets stay alive, and a cycle through the field is never collected.
///
/// Whether a skipped type may hold references is known if it implements `Trace`: its `TRACKED`
/// says so. Of another type, such as `mpsc::Sender<Gc<Task>>`, the derive asks the type's
/// arguments. It cannot see references in the fields of a type that does not implement `Trace`, nor
/// in a type parameter without the bound `Trace`. In a generic type, the error appears where the
/// type is used with such a parameter.
///
/// # Generics
///
/// A type parameter that appears in the type of a traversed field gets the bound `T: Trace`. Every
/// other type parameter gets `T: 'static`. This rule is simple and sometimes wrong: a field of type
/// `I::Item` needs `I::Item: Trace` instead, and `GcCell<T>` also needs `T: Default`. Write such
/// bounds on the type itself, or with `bound`. The derive still adds `T: 'static` then, because
/// `Trace` requires it.
///
/// A type with a lifetime parameter cannot be traced: objects of the heap outlive every borrow.
///
/// ```ignore
/// use standstill::{Gc, GcCell, Mutator, Trace};
///
/// #[derive(Trace)]
/// #[trace(finalize)]
/// struct Window<T> {
///     title: String,
///     parent: Option<Gc<Window<T>>>,
///     children: GcCell<Vec<Gc<Window<T>>>>,
///     payload: T,
///     #[trace(skip)]
///     handle: os::Handle,
/// }
///
/// impl<T: Trace> Window<T> {
///     fn finalize(this: &Gc<Self>, m: &Mutator) {
///         this.handle.close();
///     }
/// }
/// ```
#[proc_macro_derive(Trace, attributes(trace))]
pub fn derive_trace(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = syn::parse_macro_input!(input as DeriveInput);
    expand(&input).unwrap_or_else(syn::Error::into_compile_error).into()
}

// ---------------------------------------------------------------------------- mistakes

/// All mistakes found so far, as one error.
#[derive(Default)]
struct Mistakes(Option<syn::Error>);

impl Mistakes {
    fn push(&mut self, mistake: syn::Error) {
        match &mut self.0 {
            Some(all) => all.combine(mistake),
            none => *none = Some(mistake),
        }
    }

    fn finish(self) -> syn::Result<()> {
        self.0.map_or(Ok(()), Err)
    }
}

// -------------------------------------------------------------------------- attributes

const FOR_TYPES: [&str; 6] = ["crate", "untracked", "finalize", "label", "describe", "bound"];
const ON_TYPE: &str = "`crate = path`, `untracked`, `finalize`, `finalize = path`, `label = path`, `describe = path` and `bound = \"...\"`";

/// The settings of `#[trace(...)]` on the type.
#[derive(Default)]
struct Container {
    krate: Option<Path>,
    untracked: Option<()>,
    finalize: Option<Finalizer>,
    label: Option<ExprPath>,
    describe: Option<ExprPath>,
    bound: Option<Punctuated<WherePredicate, Token![,]>>,
}

enum Finalizer {
    /// `finalize`: the inherent function of that name. The span is the attribute's.
    Inherent(Span),
    /// `finalize = path`.
    Function(ExprPath),
}

impl Container {
    fn read(attributes: &[Attribute], mistakes: &mut Mistakes) -> Self {
        let mut this = Self::default();
        for_each_setting(attributes, mistakes, |setting| {
            let span = setting.path.span();
            if setting.path.is_ident("crate") {
                let path = unquoted(setting.value()?)?.call(Path::parse_mod_style)?;
                once(&mut this.krate, &setting, path)
            } else if setting.path.is_ident("untracked") {
                once(&mut this.untracked, &setting, ())
            } else if setting.path.is_ident("finalize") {
                let finalizer = if setting.input.peek(Token![=]) {
                    Finalizer::Function(unquoted(setting.value()?)?.parse()?)
                } else {
                    Finalizer::Inherent(span)
                };
                once(&mut this.finalize, &setting, finalizer)
            } else if setting.path.is_ident("label") {
                let path = unquoted(setting.value()?)?.parse()?;
                once(&mut this.label, &setting, path)
            } else if setting.path.is_ident("describe") {
                let path = unquoted(setting.value()?)?.parse()?;
                once(&mut this.describe, &setting, path)
            } else if setting.path.is_ident("bound") && !setting.input.peek(Token![=]) {
                Err(setting.error("`bound` takes a string: `bound = \"T: Trace\"`"))
            } else if setting.path.is_ident("bound") {
                let text: LitStr = setting.value()?.parse()?;
                once(&mut this.bound, &setting, text.parse_with(Punctuated::parse_terminated)?)
            } else if setting.path.is_ident("skip") {
                Err(setting.error("`skip` belongs on a field, not on the type"))
            } else {
                Err(setting
                    .error(format!("no such setting; on a type `#[trace(...)]` takes {ON_TYPE}")))
            }
        });
        this
    }
}

/// `value`, unless it is a string.
fn unquoted(value: ParseStream<'_>) -> syn::Result<ParseStream<'_>> {
    if value.peek(LitStr) { Err(value.error("write the path without quotes")) } else { Ok(value) }
}

/// A field.
struct Field<'a> {
    member: Member,
    ty: &'a Type,
}

impl<'a> Field<'a> {
    /// Sorts the fields into a shape.
    fn read_all(path: TokenStream, fields: &'a Fields, mistakes: &mut Mistakes) -> Shape<'a> {
        let mut shape = Shape { path, fields: Vec::new(), skipped: Vec::new() };
        for (index, field) in fields.iter().enumerate() {
            let (mut skip, mut leaks) = (None, None);
            for_each_setting(&field.attrs, mistakes, |setting| {
                if setting.path.is_ident("skip") {
                    once(&mut skip, &setting, ())
                } else if setting.path.is_ident("leaks_cycles") {
                    once(&mut leaks, &setting, setting.path.span())
                } else if FOR_TYPES.iter().any(|name| setting.path.is_ident(name)) {
                    Err(setting.error("this setting belongs on the type, not on a field"))
                } else {
                    Err(setting.error(
                        "no such setting; on a field `#[trace(...)]` takes `skip` and `skip, \
                         leaks_cycles`",
                    ))
                }
            });
            let member = match &field.ident {
                Some(name) => Member::Named(name.clone()),
                None => Member::Unnamed(Index { index: index as u32, span: field.ty.span() }),
            };
            let this = Self { member, ty: &field.ty };
            match (skip, leaks) {
                (None, None) => shape.fields.push(this),
                (None, Some(span)) => {
                    let text =
                        "`leaks_cycles` belongs beside `skip`: `#[trace(skip, leaks_cycles)]`";
                    mistakes.push(syn::Error::new(span, text));
                }
                (Some(()), None) => shape.skipped.push(this),
                (Some(()), Some(_)) => {}
            }
        }
        shape
    }

    /// The field's name in a message.
    fn name(&self) -> String {
        match &self.member {
            Member::Named(name) => name.unraw().to_string(),
            Member::Unnamed(index) => index.index.to_string(),
        }
    }
}

/// Reads the settings of every `#[trace(...)]` among `attributes`. Continues after a mistake.
fn for_each_setting(
    attributes: &[Attribute],
    mistakes: &mut Mistakes,
    mut read: impl FnMut(ParseNestedMeta<'_>) -> syn::Result<()>,
) {
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("trace")) {
        let outcome = attribute.parse_nested_meta(|setting| {
            let rest = setting.input;
            if let Err(mistake) = read(setting).and_then(|()| expect_end(rest)) {
                mistakes.push(mistake);
                skip_to_comma(rest)?;
            }
            Ok(())
        });
        if let Err(mistake) = outcome {
            mistakes.push(mistake);
        }
    }
}

/// Stores a setting. A second value for the same setting is a mistake.
fn once<T>(slot: &mut Option<T>, setting: &ParseNestedMeta<'_>, value: T) -> syn::Result<()> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(setting.error("this setting is given twice")),
    }
}

/// A setting ends at a comma or with the attribute.
fn expect_end(input: ParseStream<'_>) -> syn::Result<()> {
    if input.is_empty() || input.peek(Token![,]) {
        Ok(())
    } else {
        Err(input.error("expected `,`"))
    }
}

/// Skips the rest of an invalid setting.
fn skip_to_comma(input: ParseStream<'_>) -> syn::Result<()> {
    while !input.is_empty() && !input.peek(Token![,]) {
        input.parse::<TokenTree>()?;
    }
    Ok(())
}

/// Rejects `#[trace(...)]` in a place where the derive reads no settings. If it were ignored, the
/// mistake would stay hidden.
fn refuse_settings(attributes: &[Attribute], place: &str, mistakes: &mut Mistakes) {
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("trace")) {
        let text = format!(
            "`#[trace(...)]` means nothing on {place}; it belongs on the type or on a field"
        );
        mistakes.push(syn::Error::new_spanned(attribute, text));
    }
}

// -------------------------------------------------------------------------------- code

/// A struct, or one variant of an enum.
struct Shape<'a> {
    /// The path of its constructor.
    path: TokenStream,
    /// The traversed fields.
    fields: Vec<Field<'a>>,
    /// The skipped fields that must hold no references.
    skipped: Vec<Field<'a>>,
}

impl Shape<'_> {
    /// The arm of a `match` that binds the traversed fields: `first`, and `each` field's tokens.
    fn arm(
        &self,
        first: TokenStream,
        each: impl Fn(&Field<'_>, Ident) -> TokenStream,
    ) -> TokenStream {
        let Self { path, fields, .. } = self;
        let members = fields.iter().map(|field| &field.member);
        let bindings: Vec<_> = (0..fields.len()).map(binding).collect();
        let each = fields.iter().zip(&bindings).map(|(field, name)| each(field, name.clone()));
        quote!(#path { #(#members: #bindings,)* .. } => { #first #(#each)* })
    }
}

fn expand(input: &DeriveInput) -> syn::Result<TokenStream> {
    let mut mistakes = Mistakes::default();
    let container = Container::read(&input.attrs, &mut mistakes);
    let shapes = shapes(input, &mut mistakes);
    check_generics(&input.generics, &mut mistakes);
    mistakes.finish()?;

    let krate = container.krate.clone().unwrap_or_else(|| parse_quote!(::standstill));
    let name = &input.ident;
    let (impl_generics, type_generics, _) = input.generics.split_for_impl();
    let where_clause = bounds(&input.generics, &shapes, &container, &krate);
    let skipped = check_skipped(input, &shapes, &krate);
    let (members, checks) = if container.untracked.is_some() {
        untracked(input, &shapes, skipped, &krate)
    } else {
        let (now, later) = evaluate_fields(input, &shapes, skipped, &krate);
        let forward = |method, takes, first| forward(&shapes, method, takes, first, &krate);
        let traverse = forward(quote!(traverse), quote!(&mut #krate::Tracer), later);
        let clear = forward(quote!(clear), quote!(&#krate::Mutator), quote!());
        let prefetch = forward(quote!(prefetch), quote!(&#krate::Tracer), quote!());
        let types = shapes.iter().flat_map(|shape| &shape.fields).map(|field| field.ty);
        let indirect =
            quote!(const INDIRECT: bool = false #(|| <#types as #krate::Trace>::INDIRECT)*;);
        (quote!(#indirect #traverse #prefetch #clear), now)
    };
    let describe = match container.describe {
        Some(path) => describe_by(path, &krate),
        None => describe(&shapes, &krate),
    };
    let external = external(&shapes, &krate);
    let finalize = container.finalize.map(|finalizer| finalize(finalizer, &krate));
    let label = container.label.map(label);

    Ok(quote! {
        #[automatically_derived]
        #[allow(deprecated)]
        impl #impl_generics #krate::Trace for #name #type_generics #where_clause {
            #members
            #describe
            #external
            #finalize
            #label
        }
        #checks
    })
}

fn shapes<'a>(input: &'a DeriveInput, mistakes: &mut Mistakes) -> Vec<Shape<'a>> {
    match &input.data {
        Data::Struct(data) => {
            vec![Field::read_all(quote!(Self), &data.fields, mistakes)]
        }
        Data::Enum(data) => data
            .variants
            .iter()
            .map(|variant| {
                refuse_settings(&variant.attrs, "a variant", mistakes);
                let name = &variant.ident;
                Field::read_all(quote!(Self::#name), &variant.fields, mistakes)
            })
            .collect(),
        Data::Union(data) => {
            let text = "`Trace` cannot be derived for a union: the active field is unknown; \
                        use an enum, or implement `Trace` by hand";
            mistakes.push(syn::Error::new(data.union_token.span, text));
            Vec::new()
        }
    }
}

fn check_generics(generics: &Generics, mistakes: &mut Mistakes) {
    for parameter in &generics.params {
        let attributes = match parameter {
            GenericParam::Lifetime(borrow) => {
                let text = "a traced type cannot borrow: objects of the heap outlive every borrow; own \
                            the data, share it with `Arc`, or borrow it for `'static`";
                mistakes.push(syn::Error::new_spanned(&borrow.lifetime, text));
                &borrow.attrs
            }
            GenericParam::Type(parameter) => &parameter.attrs,
            GenericParam::Const(parameter) => &parameter.attrs,
        };
        refuse_settings(attributes, "a generic parameter", mistakes);
    }
}

/// The type's own where clause, and the bounds that the derive adds.
fn bounds(
    generics: &Generics,
    shapes: &[Shape<'_>],
    container: &Container,
    krate: &Path,
) -> WhereClause {
    let mut clause = generics.where_clause.clone().unwrap_or_else(|| parse_quote!(where));
    let fields = || shapes.iter().flat_map(|shape| &shape.fields);
    for parameter in generics.type_params().map(|parameter| &parameter.ident) {
        let traced = fields().any(|Field { ty, .. }| names(quote!(#ty), parameter));
        clause.predicates.push(if traced && container.bound.is_none() {
            parse_quote!(#parameter: #krate::Trace)
        } else {
            parse_quote!(#parameter: 'static)
        });
    }
    clause.predicates.extend(container.bound.iter().flatten().cloned());
    clause
}

/// Whether `parameter` is among `tokens`. A path segment of the same name also counts. Then the
/// derive may add an unneeded bound.
fn names(tokens: TokenStream, parameter: &Ident) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(ident) => ident == *parameter,
        TokenTree::Group(group) => names(group.stream(), parameter),
        _ => false,
    })
}

/// A `fn method(this: &Self, argument: takes)` that calls the same method on each field, after the
/// statements `first`.
fn forward(
    shapes: &[Shape<'_>],
    method: TokenStream,
    takes: TokenStream,
    first: TokenStream,
    krate: &Path,
) -> TokenStream {
    let call = |argument: &Ident, field: &Field<'_>, value: Ident| {
        let ty = field.ty;
        quote!(<#ty as #krate::Trace>::#method(#value, #argument);)
    };
    for_each_field(shapes, &method, takes, (first, TokenStream::new()), call)
}

/// `fn describe`, which names each field before its references.
fn describe(shapes: &[Shape<'_>], krate: &Path) -> TokenStream {
    let call = |tracer: &Ident, field: &Field<'_>, value: Ident| {
        let (ty, name) = (field.ty, field.name());
        quote! {
            #krate::Tracer::field(#tracer, #name);
            <#ty as #krate::Trace>::describe(#value, #tracer);
        }
    };
    let (outer, tracer) = (Ident::new("__outer", Span::mixed_site()), argument());
    let around = if shapes.iter().any(|shape| !shape.fields.is_empty()) {
        (
            quote!(let #outer = #krate::Tracer::outer_field(#tracer);),
            quote! {
                if let ::core::option::Option::Some(outer) = #outer {
                    #krate::Tracer::field(#tracer, outer);
                }
            },
        )
    } else {
        (TokenStream::new(), TokenStream::new())
    };
    for_each_field(shapes, &quote!(describe), quote!(&mut #krate::Tracer), around, call)
}

/// The function `describe` of the type's author.
fn describe_by(path: ExprPath, krate: &Path) -> TokenStream {
    let this = Ident::new("__this", Span::mixed_site().located_at(path.span()));
    let argument = argument();
    let call = quote_spanned!(path.span()=> #path(#this, #argument));
    quote! {
        fn describe(#this: &Self, #argument: &mut #krate::Tracer) {
            let __outer = #krate::Tracer::outer_field(#argument);
            #call;
            if let ::core::option::Option::Some(outer) = __outer {
                #krate::Tracer::field(#argument, outer);
            }
        }
    }
}

/// The name of the second argument in the methods below.
fn argument() -> Ident {
    Ident::new("__argument", Span::mixed_site())
}

/// A `fn method(this: &Self, argument: takes)` with the statements of `call` for each field,
/// between those of `around`.
fn for_each_field(
    shapes: &[Shape<'_>],
    method: &TokenStream,
    takes: TokenStream,
    (first, last): (TokenStream, TokenStream),
    call: impl Fn(&Ident, &Field<'_>, Ident) -> TokenStream,
) -> TokenStream {
    let this = Ident::new("__this", Span::mixed_site());
    let argument = argument();
    let arms = shapes
        .iter()
        .map(|shape| shape.arm(quote!(), |field, value| call(&argument, field, value)));
    // An enum without variants has no value. The compiler accepts an empty match only on the place
    // itself.
    let body =
        if shapes.is_empty() { quote!(match *#this {}) } else { quote!(match #this { #(#arms)* }) };
    let used = shapes.iter().any(|shape| !shape.fields.is_empty());
    let parameter = if used { quote!(#argument) } else { quote!(_) };
    quote! {
        #[inline]
        fn #method(#this: &Self, #parameter: #takes) {
            #first
            #body
            #last
        }
    }
}

/// The bytes outside the heap: the sum of the fields.
fn external(shapes: &[Shape<'_>], krate: &Path) -> TokenStream {
    let fields = || shapes.iter().flat_map(|shape| &shape.fields);
    if fields().next().is_none() {
        return TokenStream::new();
    }
    let all = fields().map(|field| field.ty);
    let this = Ident::new("__this", Span::mixed_site());
    let arms = shapes.iter().map(|shape| {
        shape.arm(quote!(0usize), |field, value| {
            let ty = field.ty;
            quote!(.saturating_add(<#ty as #krate::Trace>::external_bytes(#value)))
        })
    });
    quote! {
        const HAS_EXTERNAL_BYTES: bool =
            false #(|| <#all as #krate::Trace>::HAS_EXTERNAL_BYTES)*;

        #[inline]
        fn external_bytes(#this: &mut Self) -> usize {
            match #this { #(#arms)* }
        }
    }
}

/// The name of a field's binding in a pattern. Hygiene prevents clashes with the names of fields.
/// The underscores prevent clashes with constants, because a pattern matches a constant instead of
/// binding.
fn binding(index: usize) -> Ident {
    format_ident!("__field{index}", span = Span::mixed_site())
}

/// The members of a type without references, and the check that its fields hold none.
///
/// The check is separate from `TRACKED`, because the constant of a recursive type would depend on
/// itself. In a type without generics the check is evaluated once, also by `cargo check`. In a
/// generic type it is evaluated with each compiled `traverse`.
fn untracked(
    input: &DeriveInput,
    shapes: &[Shape<'_>],
    skipped: TokenStream,
    krate: &Path,
) -> (TokenStream, TokenStream) {
    let name = &input.ident;
    let checks = shapes.iter().flat_map(|shape| &shape.fields).map(|field| {
        let text = format!(
            "`{}` is `#[trace(untracked)]`, but its field `{}` may hold references",
            name.unraw(),
            field.name()
        );
        let ty = field.ty;
        quote_spanned!(ty.span()=> ::core::assert!(!<#ty as #krate::Trace>::TRACKED, #text);)
    });
    let checks = quote!(#(#checks)* #skipped);
    let (now, later) = if input.generics.params.is_empty() {
        (evaluated_now(checks, name), TokenStream::new())
    } else {
        (TokenStream::new(), quote!(const { #checks }))
    };
    let members = quote! {
        const TRACKED: bool = false;

        fn traverse(_: &Self, _: &mut #krate::Tracer) {
            #later
        }
    };
    (members, now)
}

/// Evaluates `TRACKED` of each field, so that `cargo check` reports a lock around references, and
/// the checks of the skipped fields. In a generic type each compiled `traverse` does so instead, by
/// the statements that come second.
fn evaluate_fields(
    input: &DeriveInput,
    shapes: &[Shape<'_>],
    skipped: TokenStream,
    krate: &Path,
) -> (TokenStream, TokenStream) {
    if !input.generics.params.is_empty() {
        return (TokenStream::new(), skipped);
    }
    let fields = shapes.iter().flat_map(|shape| &shape.fields);
    let constants = fields.map(|Field { ty, .. }| {
        quote_spanned!(ty.span()=> let _: bool = <#ty as #krate::Trace>::TRACKED;)
    });
    (evaluated_now(quote!(#(#constants)* #skipped), &input.ident), TokenStream::new())
}

/// The checks that the skipped fields hold no references: a constant for each, so that one
/// compilation reports them all. A constant item cannot use the parameters of a generic type.
fn check_skipped(input: &DeriveInput, shapes: &[Shape<'_>], krate: &Path) -> TokenStream {
    let checks = shapes.iter().flat_map(|shape| &shape.skipped).map(|field| {
        let text = format!(
            "`{}` skips its field `{}`, which may hold references: their targets would stay alive, \
             and cycles through the field would never be collected. Remove `skip`. If the type of \
             the field holds no references, put `#[trace(untracked)]` on that type. If they may \
             leak, write `#[trace(skip, leaks_cycles)]`",
            input.ident.unraw(),
            field.name()
        );
        let holds = may_hold(field.ty, &input.generics, krate);
        let check = quote_spanned! {field.ty.span()=>
            #[allow(unused_imports)]
            use #krate::AnySkipped as _;
            ::core::assert!(!#holds, #text);
        };
        if input.generics.params.is_empty() {
            quote!(const _: () = { #check };)
        } else {
            quote!(const { #check })
        }
    });
    quote!(#(#checks)*)
}

/// An expression: whether values of a skipped type may hold references, as far as is known. A type
/// that does not implement `Trace` is taken to hold values of its arguments.
///
/// The constants of the arguments are evaluated in any case, and that of a lock around references
/// fails. So the arguments of types that may lead to such a lock, and do not hold it, are left out.
fn may_hold(ty: &Type, generics: &Generics, krate: &Path) -> TokenStream {
    let arguments: Vec<&Type> = match ty {
        Type::Paren(inner) => vec![&inner.elem],
        Type::Group(inner) => vec![&inner.elem],
        Type::Array(array) => vec![&array.elem],
        Type::Slice(slice) => vec![&slice.elem],
        Type::Tuple(tuple) => tuple.elems.iter().collect(),
        Type::Path(path) => path
            .path
            .segments
            .iter()
            .filter(|segment| !HOLD_NOTHING.iter().any(|name| segment.ident == name))
            .filter_map(|segment| match &segment.arguments {
                PathArguments::AngleBracketed(arguments) => Some(&arguments.args),
                _ => None,
            })
            .flatten()
            .filter_map(|argument| match argument {
                GenericArgument::Type(ty) if !may_be_a_constant(ty, generics) => Some(ty),
                _ => None,
            })
            .collect(),
        // Functions and trait objects name types that they do not hold; references and pointers own
        // nothing.
        _ => Vec::new(),
    };
    let arguments = arguments.into_iter().map(|ty| may_hold(ty, generics, krate));
    quote_spanned! {ty.span()=>
        match <#krate::Skipped<#ty>>::REFERENCES {
            ::core::option::Option::Some(some) => some,
            ::core::option::Option::None => false #(|| #arguments)*,
        }
    }
}

/// Types with arguments that are leaves, whatever the arguments are.
const HOLD_NOTHING: [&str; 4] = ["Arc", "AtomicPtr", "PhantomData", "Weak"];

/// Whether an argument is a name that may be a constant's. The syntax does not tell.
fn may_be_a_constant(argument: &Type, generics: &Generics) -> bool {
    let Type::Path(path) = argument else { return false };
    path.path.get_ident().is_some_and(|name| {
        let text = name.unraw().to_string();
        !text.contains(char::is_lowercase)
            && generics.type_params().all(|parameter| parameter.ident != *name)
    })
}

/// A constant with `statements`, which `cargo check` evaluates.
fn evaluated_now(statements: TokenStream, name: &Ident) -> TokenStream {
    let statements = without_self(statements, name);
    quote! {
        #[allow(deprecated, unused_qualifications)]
        const _: () = { #statements };
    }
}

/// `tokens` with `Self` replaced by the type's name, for use outside the implementation.
fn without_self(tokens: TokenStream, name: &Ident) -> TokenStream {
    let spelled = |token| match token {
        TokenTree::Ident(ident) if ident == "Self" => {
            let mut name = name.clone();
            name.set_span(ident.span());
            name.into()
        }
        TokenTree::Group(group) => {
            let mut spelled = Group::new(group.delimiter(), without_self(group.stream(), name));
            spelled.set_span(group.span());
            spelled.into()
        }
        other => other,
    };
    tokens.into_iter().map(spelled).collect()
}

/// The constant `FINALIZER`.
fn finalize(finalizer: Finalizer, krate: &Path) -> TokenStream {
    // Located at the attribute, so that a wrong signature is reported there.
    let (place, function) = match finalizer {
        Finalizer::Inherent(place) => (place, parse_quote_spanned!(place=> Self::finalize)),
        Finalizer::Function(path) => (path.span(), path),
    };
    let this = Ident::new("__this", Span::mixed_site().located_at(place));
    let mutator = Ident::new("__mutator", Span::mixed_site().located_at(place));
    let call = quote_spanned!(place=> #function(#this, #mutator));
    quote! {
        const FINALIZER: ::core::option::Option<#krate::Finalizer<Self>> =
            ::core::option::Option::Some(#krate::Finalizer::new(|#this, #mutator| #call));
    }
}

/// The function `label`.
fn label(path: ExprPath) -> TokenStream {
    // Located at the path, so that a wrong signature is reported there.
    let this = Ident::new("__this", Span::mixed_site().located_at(path.span()));
    let argument = argument();
    let call = quote_spanned!(path.span()=> #path(#this, #argument));
    quote! {
        fn label(
            #this: &Self,
            #argument: &mut ::core::fmt::Formatter<'_>,
        ) -> ::core::fmt::Result {
            #call
        }
    }
}
