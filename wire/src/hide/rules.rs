//! Rules: places in a document, and the values that stand there without our fields.

use std::ops::Range;

use crate::json::{
    Edits, Ends, Malformed, Member, Members, Outline, cuts, each_element, members, root,
};

/// A place to hide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rule {
    /// Keys from the root; `*` stands for every element of a list.
    path: &'static [&'static str],
    replacement: Replacement,
}

/// The value in the place of a hidden one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replacement {
    Null,
    /// Null; in a frame that leaves null keys out, the key is removed with its value.
    NullOrAbsent,
    /// Null for a filled list. An empty list stays: it is there without our fields, too.
    NullIfFilled,
    EmptyList,
    /// An empty list, in an object with this `type`.
    EmptyListOf(&'static str),
    /// The number 0.
    Zero,
    /// The key is removed with its value.
    Absent,
}

/// A rule that puts `replacement` where `path` leads.
pub(crate) const fn rule(path: &'static [&'static str], replacement: Replacement) -> Rule {
    Rule { path, replacement }
}

/// The edits that `rules` make in a document.
pub(super) fn edits(document: &Outline<'_>, rules: &[Rule]) -> Result<Edits, Malformed> {
    let nulls_are_absent = rules.iter().any(|rule| rule.replacement == Replacement::NullOrAbsent)
        && omits_nulls(document)?;
    let in_this_spelling = |rule: &Rule| match rule.replacement {
        Replacement::NullOrAbsent if nulls_are_absent => {
            Rule { replacement: Replacement::Absent, ..*rule }
        }
        _ => *rule,
    };
    let spelled: Vec<Rule> = rules.iter().map(in_this_spelling).collect();

    let mut edits = Edits::default();
    edit_value(document, &root(document)?, &spelled, &mut edits)?;
    Ok(edits)
}

/// Returns true if a frame leaves null keys out. Python servers write `finish_reason` and
/// `logprobs` in every choice; vLLM's Rust frontend never writes both.
fn omits_nulls(document: &Outline<'_>) -> Result<bool, Malformed> {
    let doc = document.bytes();
    for member in members(document, &root(document)?)? {
        if *member.name(doc) != *b"choices" || doc.get(member.value.start) != Some(&b'[') {
            continue;
        }
        let mut omits = false;
        each_element(document, &member.value, |choice| {
            let fields = if omits { Members::new() } else { members(document, &choice)? };
            let has = |name| has_key(doc, &fields, name);
            omits = omits || !(has("finish_reason") && has("logprobs"));
            Ok(())
        })?;
        if omits {
            return Ok(true);
        }
    }
    Ok(false)
}

fn has_key(doc: &[u8], fields: &[Member], name: &str) -> bool {
    fields.iter().any(|field| *field.name(doc) == *name.as_bytes())
}

/// Collects the edits that `rules` make in the value at `place`.
fn edit_value(
    document: &Outline<'_>,
    place: &Range<usize>,
    rules: &[Rule],
    edits: &mut Edits,
) -> Result<(), Malformed> {
    match document.bytes().get(place.start) {
        Some(b'[') => {
            let inner = below(rules, b"*");
            if !inner.is_empty() {
                each_element(document, place, |element| {
                    edit_value(document, &element, &inner, edits)
                })?;
            }
            Ok(())
        }
        Some(b'{') => edit_object(document, place, rules, edits),
        _ => Ok(()),
    }
}

fn edit_object(
    document: &Outline<'_>,
    place: &Range<usize>,
    rules: &[Rule],
    edits: &mut Edits,
) -> Result<(), Malformed> {
    let doc = document.bytes();
    let fields = members(document, place)?;
    let mut removed = vec![false; fields.len()];

    for (field, removed) in fields.iter().zip(&mut removed) {
        let inner = below(rules, &field.name(doc));
        let here = inner.iter().find(|rule| rule.path.is_empty()).map(|rule| rule.replacement);
        match here {
            Some(Replacement::Absent) => *removed = true,
            Some(Replacement::EmptyListOf(kind)) if !is_of_type(doc, &fields, kind) => {}
            Some(replacement) => replace(doc, &field.value, replacement, edits),
            None if inner.is_empty() => {}
            None => edit_value(document, &field.value, &inner, edits)?,
        }
    }

    cuts(&fields, &removed).into_iter().for_each(|cut| edits.put(cut, ""));
    Ok(())
}

/// Returns true if the object of these fields has `type` set to `kind`.
fn is_of_type(doc: &[u8], fields: &[Member], kind: &str) -> bool {
    let named = fields.iter().find(|field| *field.name(doc) == *b"type");
    named.is_some_and(|field| {
        serde_json::from_slice::<&str>(&doc[field.value.clone()]).is_ok_and(|name| name == kind)
    })
}

fn replace(doc: &[u8], place: &Range<usize>, replacement: Replacement, edits: &mut Edits) {
    let value = &doc[place.clone()];
    let hidden = match replacement {
        Replacement::EmptyList | Replacement::EmptyListOf(_) => "[]",
        Replacement::NullIfFilled if value == b"[]" => "[]",
        Replacement::Zero => "0",
        Replacement::Null
        | Replacement::NullOrAbsent
        | Replacement::NullIfFilled
        | Replacement::Absent => "null",
    };
    if value != hidden.as_bytes() && value != b"null" {
        edits.put(place.clone(), hidden);
    }
}

/// The rules that apply below `key`, with paths from there.
fn below(rules: &[Rule], key: &[u8]) -> Vec<Rule> {
    let rest = |rule: &Rule| {
        let (first, path) = rule.path.split_first()?;
        (first.as_bytes() == key).then_some(Rule { path, ..*rule })
    };
    rules.iter().filter_map(rest).collect()
}
