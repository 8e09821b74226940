//! `#[derive(Trace)]` for [`standstill`](https://docs.rs/standstill).
//!
//! Use it through `standstill`, which re-exports it beside the trait. The macro forwards `traverse`
//! and `clear` to each field, and nothing else; there is no `unsafe` in what it writes. Three steps:
//! *attributes* are read into `Container` and `Field`, *bounds* are chosen, *code* is written.
//! Every mistake found on the way is collected, so that one compilation shows them all.

use proc_macro2::{Group, Ident, Span, TokenStream, TokenTree};
use quote::{format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::meta::ParseNestedMeta;
use syn::parse::ParseStream;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{
    Attribute, Data, DeriveInput, ExprPath, Fields, GenericParam, Generics, Index, LitStr, Member,
    Path, Token, Type, WhereClause, WherePredicate, parse_quote,
};

/// Implements `Trace` for a struct or an enum by forwarding to its fields.
///
/// Every field's type must implement `Trace`, or be skipped.
///
/// # On the type
///
/// * `#[trace(finalize)]`: objects of this type have a finalizer, the type's own function
///   `fn finalize(this: &Gc<Self>, m: &Mutator)`. It is required to exist.
/// * `#[trace(finalize = path)]`: the same, with any function of that signature.
/// * `#[trace(untracked)]`: values hold no references, so the collector never looks at them. It is
///   checked: a field whose type may hold references is an error (in a generic type, where it is
///   used with such a type). A finalizer is allowed beside it, but no collection will find the
///   object unreachable.
/// * `#[trace(bound = "T: Bound, ...")]`: replaces the bounds that the derive adds.
/// * `#[trace(crate = path)]`: where `standstill` is found, if not at `::standstill`.
///
/// # On a field
///
/// * `#[trace(skip)]`: the field is neither traversed nor cleared, and its type need not implement
///   `Trace`. A reference in it counts as held from outside: it keeps its target, and a cycle
///   through it is never collected.
///
/// # Generics
///
/// A type parameter that is named in the type of a field which is not skipped gets the bound
/// `T: Trace`, every other one `T: 'static`. That is simple and at times wrong: a field of type
/// `I::Item` needs `I::Item: Trace` instead, and `Mutex<T>` needs `T: Default` besides. Write such
/// bounds on the type itself, or with `bound`; `T: 'static` is kept then, since `Trace` demands it.
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

const FOR_TYPES: [&str; 4] = ["crate", "untracked", "finalize", "bound"];
const ON_TYPE: &str =
    "`crate = path`, `untracked`, `finalize`, `finalize = path` and `bound = \"...\"`";

/// What `#[trace(...)]` on the type says.
#[derive(Default)]
struct Container {
    krate: Option<Path>,
    untracked: Option<()>,
    finalize: Option<Finalizer>,
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
                once(&mut this.krate, &setting, setting.value()?.call(Path::parse_mod_style)?)
            } else if setting.path.is_ident("untracked") {
                once(&mut this.untracked, &setting, ())
            } else if setting.path.is_ident("finalize") {
                let finalizer = if setting.input.peek(Token![=]) {
                    Finalizer::Function(setting.value()?.parse()?)
                } else {
                    Finalizer::Inherent(span)
                };
                once(&mut this.finalize, &setting, finalizer)
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

/// A field that is traversed.
struct Field<'a> {
    member: Member,
    ty: &'a Type,
}

impl<'a> Field<'a> {
    /// The fields that are not skipped.
    fn read_all(fields: &'a Fields, mistakes: &mut Mistakes) -> Vec<Self> {
        let mut traced = Vec::new();
        for (index, field) in fields.iter().enumerate() {
            let mut skip = None;
            for_each_setting(&field.attrs, mistakes, |setting| {
                if setting.path.is_ident("skip") {
                    once(&mut skip, &setting, ())
                } else if FOR_TYPES.iter().any(|name| setting.path.is_ident(name)) {
                    Err(setting.error("this setting belongs on the type, not on a field"))
                } else {
                    Err(setting.error("no such setting; on a field `#[trace(...)]` takes `skip`"))
                }
            });
            if skip.is_none() {
                let member = match &field.ident {
                    Some(name) => Member::Named(name.clone()),
                    None => Member::Unnamed(Index { index: index as u32, span: field.ty.span() }),
                };
                traced.push(Self { member, ty: &field.ty });
            }
        }
        traced
    }

    /// How a message names the field.
    fn name(&self) -> String {
        match &self.member {
            Member::Named(name) => name.unraw().to_string(),
            Member::Unnamed(index) => index.index.to_string(),
        }
    }
}

/// Reads the settings of every `#[trace(...)]` among `attributes`, going on after a mistake.
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

/// Puts down a setting that may be given once.
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

/// Passes over what a setting that was not understood left behind.
fn skip_to_comma(input: ParseStream<'_>) -> syn::Result<()> {
    while !input.is_empty() && !input.peek(Token![,]) {
        input.parse::<TokenTree>()?;
    }
    Ok(())
}

/// A `#[trace(...)]` where none is read would be a silent misunderstanding.
fn refuse_settings(attributes: &[Attribute], place: &str, mistakes: &mut Mistakes) {
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("trace")) {
        let text = format!(
            "`#[trace(...)]` means nothing on {place}; it belongs on the type or on a field"
        );
        mistakes.push(syn::Error::new_spanned(attribute, text));
    }
}

// -------------------------------------------------------------------------------- code

/// A struct, or one variant of an enum: the path of its constructor and what to traverse in it.
struct Shape<'a> {
    path: TokenStream,
    fields: Vec<Field<'a>>,
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
    let (members, proof) = if container.untracked.is_some() {
        untracked(input, &shapes, &krate)
    } else {
        let traverse = forward(&shapes, quote!(traverse), quote!(&mut #krate::Tracer), &krate);
        let clear = forward(&shapes, quote!(clear), quote!(&#krate::Mutator), &krate);
        let prefetch = forward(&shapes, quote!(prefetch), quote!(&#krate::Tracer), &krate);
        let types = shapes.iter().flat_map(|shape| &shape.fields).map(|field| field.ty);
        let indirect =
            quote!(const INDIRECT: bool = false #(|| <#types as #krate::Trace>::INDIRECT)*;);
        (quote!(#indirect #traverse #prefetch #clear), TokenStream::new())
    };
    let finalize = container.finalize.map(|finalizer| finalize(finalizer, &krate));

    Ok(quote! {
        #[automatically_derived]
        #[allow(deprecated)]
        impl #impl_generics #krate::Trace for #name #type_generics #where_clause {
            #members
            #finalize
        }
        #proof
    })
}

fn shapes<'a>(input: &'a DeriveInput, mistakes: &mut Mistakes) -> Vec<Shape<'a>> {
    match &input.data {
        Data::Struct(data) => {
            vec![Shape { path: quote!(Self), fields: Field::read_all(&data.fields, mistakes) }]
        }
        Data::Enum(data) => data
            .variants
            .iter()
            .map(|variant| {
                refuse_settings(&variant.attrs, "a variant", mistakes);
                let name = &variant.ident;
                Shape {
                    path: quote!(Self::#name),
                    fields: Field::read_all(&variant.fields, mistakes),
                }
            })
            .collect(),
        Data::Union(data) => {
            let text = "`Trace` cannot be derived for a union: nobody knows which field is the live one; \
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

/// The type's own where clause and what the derive adds to it.
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

/// Whether `parameter` is among `tokens`. Says yes too often for a path segment of the same name,
/// which at worst asks for a bound too many.
fn names(tokens: TokenStream, parameter: &Ident) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(ident) => ident == *parameter,
        TokenTree::Group(group) => names(group.stream(), parameter),
        _ => false,
    })
}

/// `fn method(this: &Self, argument: takes)` that calls the same method on each field.
fn forward(
    shapes: &[Shape<'_>],
    method: TokenStream,
    takes: TokenStream,
    krate: &Path,
) -> TokenStream {
    let this = Ident::new("__this", Span::mixed_site());
    let argument = Ident::new("__argument", Span::mixed_site());
    let arms = shapes.iter().map(|Shape { path, fields }| {
        let members = fields.iter().map(|field| &field.member);
        let types = fields.iter().map(|field| field.ty);
        let bindings: Vec<_> = (0..fields.len()).map(binding).collect();
        quote! {
            #path { #(#members: #bindings,)* .. } => {
                #(<#types as #krate::Trace>::#method(#bindings, #argument);)*
            }
        }
    });
    // An enum without variants has no value, and only a match on the place itself knows that.
    let body =
        if shapes.is_empty() { quote!(match *#this {}) } else { quote!(match #this { #(#arms)* }) };
    let used = shapes.iter().any(|shape| !shape.fields.is_empty());
    let parameter = if used { quote!(#argument) } else { quote!(_) };
    quote! {
        #[inline]
        fn #method(#this: &Self, #parameter: #takes) {
            #body
        }
    }
}

/// Hygiene keeps these names from meeting the fields'; the underscores, from meeting a constant, since a
/// pattern would name that instead of binding.
fn binding(index: usize) -> Ident {
    format_ident!("__field{index}", span = Span::mixed_site())
}

/// The members of a type without references, and the proof that it is one.
///
/// The proof stands apart from `TRACKED`: a recursive type's constant would depend on itself. Where
/// nothing is generic it is evaluated at once, by `cargo check` too; else with each `traverse` that
/// is compiled.
fn untracked(
    input: &DeriveInput,
    shapes: &[Shape<'_>],
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
    let checks = quote!(#(#checks)*);
    let (now, later) = if input.generics.params.is_empty() {
        let checks = without_self(checks, name);
        (quote!(const _: () = { #checks };), TokenStream::new())
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

/// `tokens` with `Self` written out, for use outside the implementation.
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

/// The finalizer and the constant that announces it.
fn finalize(finalizer: Finalizer, krate: &Path) -> TokenStream {
    // Located at the attribute, where a wrong signature is to be reported.
    let place = match &finalizer {
        Finalizer::Inherent(span) => *span,
        Finalizer::Function(path) => path.span(),
    };
    let this = Ident::new("__this", Span::mixed_site().located_at(place));
    let mutator = Ident::new("__mutator", Span::mixed_site().located_at(place));
    let call = match finalizer {
        Finalizer::Function(path) => quote_spanned!(place=> #path(#this, #mutator)),
        // An inherent function wins over a trait's. Without one, `Self::finalize` would be the very
        // function written here, and call itself for ever; a second candidate makes that an error.
        Finalizer::Inherent(_) => {
            let own = Ident::new("finalize", place);
            quote! {
                #[allow(unused_imports)]
                use #krate::Trace as _;
                #[allow(dead_code)]
                trait NoInherentFunctionFinalize {
                    fn finalize();
                }
                impl<T: ?::core::marker::Sized> NoInherentFunctionFinalize for T {
                    fn finalize() {}
                }
                Self::#own(#this, #mutator)
            }
        }
    };
    quote! {
        const HAS_FINALIZER: bool = true;

        fn finalize(#this: &#krate::Gc<Self>, #mutator: &#krate::Mutator) {
            #call
        }
    }
}
