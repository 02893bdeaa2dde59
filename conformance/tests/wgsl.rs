//! Checks that every WGSL source is valid and matches its ABI. Bindings must have the access that the ABI
//! declares. Constants must follow the coordinates of the first work group.

use naga::proc::GlobalCtx;
use naga::valid::{Capabilities, ValidationFlags, Validator};
use naga::{AddressSpace, Module, StorageAccess, TypeInner};
use ragtag_hal::{Access, EntryAbi, KernelLanguage};
use ragtag_kernels::{Code, Text, Variant, variants};
use std::collections::BTreeMap;

fn in_wgsl() -> impl Iterator<Item = (&'static Variant, Text)> {
    variants().iter().filter_map(|variant| match variant.code {
        Code::Text(text) if text.language == KernelLanguage::Wgsl => Some((variant, text)),
        _ => None,
    })
}

/// Parses and validates `text`. An error shows its location in the text.
fn read(text: &str) -> Result<Module, String> {
    let module = naga::front::wgsl::parse_str(text).map_err(|e| e.emit_to_string(text))?;
    let mut validator = Validator::new(ValidationFlags::all(), Capabilities::all());
    validator.validate(&module).map_err(|e| e.emit_to_string(text))?;
    Ok(module)
}

fn access_of(access: StorageAccess) -> &'static str {
    if access.contains(StorageAccess::STORE) { "read_write" } else { "read" }
}

fn check(module: &Module, text: &Text, abi: &EntryAbi) -> Result<(), String> {
    let [entry] = module.entry_points.as_slice() else {
        return Err(format!("{} entry points, not one", module.entry_points.len()));
    };
    if (entry.name.as_str(), entry.workgroup_size) != (text.function, text.work_group) {
        return Err(format!("{} with groups of {:?}", entry.name, entry.workgroup_size));
    }
    let (mut bindings, mut constants) = (BTreeMap::new(), 0);
    for (_, variable) in module.global_variables.iter() {
        match (variable.space, &variable.binding) {
            (AddressSpace::Storage { access }, Some(binding)) if binding.group == 0 => {
                bindings.insert(binding.binding, access_of(access));
            }
            (AddressSpace::Immediate, _) => constants = words(module, variable.ty)?,
            (AddressSpace::WorkGroup | AddressSpace::Private, _) => {}
            other => return Err(format!("{:?}: {other:?}", variable.name)),
        }
    }
    let wanted = abi.bindings.iter().map(|access| match access {
        Access::Read => "read",
        Access::Write | Access::ReadWrite => "read_write",
    });
    let wanted: BTreeMap<u32, &str> = (0..).zip(wanted).collect();
    if bindings != wanted {
        return Err(format!("bindings {bindings:?}, not {wanted:?}"));
    }
    if constants != 3 + abi.constants {
        return Err(format!("{constants} words of constants, not 3 + {}", abi.constants));
    }
    Ok(())
}

/// Returns the number of words in structure `ty`, which holds the constants. Each field must be 32 bits wide,
/// without gaps between fields.
fn words(module: &Module, ty: naga::Handle<naga::Type>) -> Result<usize, String> {
    let context = module.to_ctx();
    let TypeInner::Struct { members, .. } = &module.types[ty].inner else {
        return Err("the constants must be a structure".into());
    };
    members.iter().try_fold(0, |words, member| {
        if member.offset as usize != words * 4 {
            return Err(format!("{:?} is not at word {words}", member.name));
        }
        Ok(words + size_of_type(&context, module, member.ty) / 4)
    })
}

fn size_of_type(context: &GlobalCtx<'_>, module: &Module, ty: naga::Handle<naga::Type>) -> usize {
    module.types[ty].inner.size(*context) as usize
}

#[test]
fn texts_match_their_abi() {
    let mut wrong = Vec::new();
    let mut checked = 0;
    for (variant, text) in in_wgsl() {
        let checked_text = read(&text.text()).and_then(|module| check(&module, &text, variant.abi));
        wrong.extend(checked_text.err().map(|e| format!("{} ({}): {e}", variant.kernel, variant.name)));
        checked += 1;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked > 0, "there are no texts");
}

#[test]
fn rejects_other_texts() {
    let good = in_wgsl().next().expect("there is a text");
    let text = good.1.text();
    for (from, to) in [
        ("var<storage, read> params", "var<storage, read_write> params"),
        ("@binding(1)", "@binding(7)"),
        ("first_group: vec3<u32>,", "first_group: vec3<u32>, more: u32,"),
        ("@workgroup_size(ITEMS)", "@workgroup_size(32)"),
    ] {
        let changed = text.replacen(from, to, 1);
        assert_ne!(&*text, changed, "{from} is in the text");
        let refused = read(&changed).and_then(|module| check(&module, &good.1, good.0.abi));
        assert!(refused.is_err(), "{to} is taken");
    }
}
