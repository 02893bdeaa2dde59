//! Resources of a device, and the validation of commands that use them.

use super::LastUse;
use crate::caps::{Caps, KernelLanguage};
use crate::command::{
    Access, Binding, BufferRange, Command, Dispatch, EntryAbi, LinkedEntry, Module, ModuleSource,
};
use crate::error::{self, Error};
use crate::gemm::GemmEntry;
use crate::ids::{BufferId, ModuleId, QueueKind, RegionId};
use std::collections::HashMap;
use std::fmt;

/// Result of a check. The error text states the broken rule and the offending values.
type Rule = Result<(), String>;

/// A buffer or a region.
pub(super) struct Held {
    bytes: u64,
    pub(super) last_use: LastUse,
}

/// A module.
pub(super) struct Loaded {
    entries: Vec<&'static EntryAbi>,
    /// One item for each entry if the module links to a product library, otherwise empty.
    gemms: Vec<Option<GemmEntry>>,
    pub(super) last_use: LastUse,
}

/// Resources of a device that commands can name.
pub(super) struct Resources {
    caps: Caps,
    pub(super) buffers: HashMap<BufferId, Held>,
    pub(super) regions: HashMap<RegionId, Held>,
    pub(super) modules: HashMap<ModuleId, Loaded>,
}

/// A resource that a command names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Name {
    Buffer(BufferId),
    Region(RegionId),
    Module(ModuleId),
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Name::Buffer(id) => id.fmt(f),
            Name::Region(id) => id.fmt(f),
            Name::Module(id) => id.fmt(f),
        }
    }
}

/// Returns the resources that commands name, without duplicates.
pub(super) fn names(commands: &[Command]) -> Vec<Name> {
    let mut names = Vec::new();
    commands.iter().for_each(|command| visit(command, |name| names.push(name)));
    names.sort_unstable();
    names.dedup();
    names
}

/// Calls `name` with each resource that a command names.
fn visit(command: &Command, mut name: impl FnMut(Name)) {
    match command {
        Command::Dispatch(dispatch) => {
            name(Name::Module(dispatch.module));
            dispatch.bindings.iter().for_each(|binding| name(Name::Buffer(binding.range.buffer)));
        }
        Command::Copy { from, to } => {
            name(Name::Buffer(from.buffer));
            name(Name::Buffer(to.buffer));
        }
        Command::Fill { to, .. } => name(Name::Buffer(to.buffer)),
        Command::Upload { region, to: range, .. }
        | Command::UploadUsed { region, to: range, .. }
        | Command::Download { from: range, region, .. } => {
            name(Name::Region(*region));
            name(Name::Buffer(range.buffer));
        }
    }
}

impl Resources {
    pub(super) fn new(caps: Caps) -> Self {
        Self { caps, buffers: HashMap::new(), regions: HashMap::new(), modules: HashMap::new() }
    }

    pub(super) fn check_new_buffer(&self, id: BufferId, bytes: u64) -> error::Result<()> {
        if self.buffers.contains_key(&id) {
            return Err(Error::invalid(format!("{id} exists already")));
        }
        if bytes == 0 {
            return Err(Error::invalid(format!("{id} of zero bytes")));
        }
        if bytes > self.caps.max_allocation_bytes {
            return Err(Error::AllocationTooLarge { wanted: bytes, largest: self.caps.max_allocation_bytes });
        }
        Ok(())
    }

    pub(super) fn check_new_module(&self, id: ModuleId, module: &Module) -> error::Result<()> {
        if self.modules.contains_key(&id) {
            return Err(Error::invalid(format!("{id} exists already")));
        }
        check_module(module, &self.caps)
    }

    pub(super) fn add_buffer(&mut self, id: BufferId, bytes: u64) {
        self.buffers.insert(id, Held { bytes, last_use: LastUse::default() });
    }

    pub(super) fn add_module(&mut self, id: ModuleId, module: &Module) {
        let (entries, gemms) = (module.entries.clone(), gemms(&module.source));
        self.modules.insert(id, Loaded { entries, gemms, last_use: LastUse::default() });
    }

    pub(super) fn add_region(&mut self, id: RegionId, bytes: u64) {
        self.regions.insert(id, Held { bytes, last_use: LastUse::default() });
    }

    pub(super) fn buffer(&self, id: BufferId) -> Result<&Held, String> {
        self.buffers.get(&id).ok_or_else(|| format!("{id} does not exist"))
    }

    pub(super) fn region(&self, id: RegionId) -> Result<&Held, String> {
        self.regions.get(&id).ok_or_else(|| format!("{id} is not registered"))
    }

    pub(super) fn module(&self, id: ModuleId) -> Result<&Loaded, String> {
        self.modules.get(&id).ok_or_else(|| format!("{id} does not exist"))
    }

    /// Marks the resources that commands name as in use until the queue reaches `value`.
    pub(super) fn mark(&mut self, queue: QueueKind, value: u64, commands: &[Command]) {
        for command in commands {
            visit(command, |name| {
                let last_use = match name {
                    Name::Buffer(id) => self.buffers.get_mut(&id).map(|held| &mut held.last_use),
                    Name::Region(id) => self.regions.get_mut(&id).map(|held| &mut held.last_use),
                    Name::Module(id) => self.modules.get_mut(&id).map(|loaded| &mut loaded.last_use),
                };
                if let Some(last_use) = last_use {
                    last_use.mark(queue, value);
                }
            });
        }
    }

    /// Checks that the queue may execute this command, and that the command uses its resources correctly.
    pub(super) fn check(&self, queue: QueueKind, command: &Command) -> Rule {
        let (name, home) = match command {
            Command::Dispatch(_) => ("dispatch", QueueKind::Compute),
            Command::Copy { .. } => ("copy", queue),
            Command::Fill { .. } => ("fill", QueueKind::Compute),
            Command::Upload { .. } => ("upload", QueueKind::Upload),
            Command::UploadUsed { .. } => ("upload of used words", QueueKind::Compute),
            Command::Download { .. } => ("download", QueueKind::Download),
        };
        if queue != QueueKind::Compute && queue != home {
            return Err(format!("a {name} on the {} queue", queue.name()));
        }
        match command {
            Command::Dispatch(dispatch) => self.check_dispatch(dispatch),
            Command::Copy { from, to } => self.check_copy(from, to),
            Command::Fill { to, .. } => self.check_fill(to),
            Command::UploadUsed { to, used, .. } if u64::from(*used) >= to.bytes / 4 => {
                Err(format!("word {used} of an upload of {} bytes", to.bytes))
            }
            Command::Upload { region, offset, to: range }
            | Command::UploadUsed { region, offset, to: range, .. }
            | Command::Download { from: range, region, offset } => {
                self.check_range(range)?;
                self.check_alignment(range)?;
                self.check_region(*region, *offset, range.bytes)
            }
        }
    }

    fn check_range(&self, range: &BufferRange) -> Rule {
        let bytes = self.buffer(range.buffer)?.bytes;
        if range.bytes == 0 {
            return Err(format!("an empty range of {}", range.buffer));
        }
        match range.offset.checked_add(range.bytes) {
            Some(end) if end <= bytes => Ok(()),
            _ => Err(format!(
                "{} bytes from {} on of {}, which has {bytes}",
                range.bytes, range.offset, range.buffer
            )),
        }
    }

    /// Checks the alignment of a copy: it must start at a multiple of the device's alignment, and end at such
    /// a multiple or at the end of its buffer.
    fn check_alignment(&self, range: &BufferRange) -> Rule {
        let alignment = self.caps.copy_alignment_bytes.max(1);
        let end = range.offset.saturating_add(range.bytes);
        let ends_well = end.is_multiple_of(alignment) || end == self.buffer(range.buffer)?.bytes;
        if !range.offset.is_multiple_of(alignment) || !ends_well {
            return Err(format!(
                "a copy of {} bytes at {} of {}; both must be multiples of {alignment}",
                range.bytes, range.offset, range.buffer
            ));
        }
        Ok(())
    }

    fn check_region(&self, region: RegionId, offset: u64, bytes: u64) -> Rule {
        let held = self.region(region)?.bytes;
        match offset.checked_add(bytes) {
            Some(end) if end <= held => Ok(()),
            _ => Err(format!("{bytes} bytes from {offset} on of {region}, which has {held}")),
        }
    }

    fn check_copy(&self, from: &BufferRange, to: &BufferRange) -> Rule {
        self.check_range(from)?;
        self.check_range(to)?;
        if from.bytes != to.bytes {
            return Err(format!("a copy of {} bytes into {} bytes", from.bytes, to.bytes));
        }
        self.check_alignment(from)?;
        self.check_alignment(to)?;
        if overlap(from, to) {
            return Err(format!("a copy within {} whose ranges overlap", from.buffer));
        }
        Ok(())
    }

    fn check_fill(&self, to: &BufferRange) -> Rule {
        self.check_range(to)?;
        if !to.offset.is_multiple_of(4) || !to.bytes.is_multiple_of(4) {
            return Err(format!(
                "a fill of {} bytes from {} on; both must be multiples of four",
                to.bytes, to.offset
            ));
        }
        Ok(())
    }

    fn check_dispatch(&self, dispatch: &Dispatch) -> Rule {
        let Loaded { entries, gemms, .. } = self.module(dispatch.module)?;
        let abi = entries.get(dispatch.entry as usize).ok_or_else(|| {
            format!("no entry {} in {}, which has {}", dispatch.entry, dispatch.module, entries.len())
        })?;
        let name = abi.name;
        if dispatch.bindings.len() != abi.bindings.len() {
            let (given, wanted) = (dispatch.bindings.len(), abi.bindings.len());
            return Err(format!("{name} takes {wanted} bindings, not {given}"));
        }
        if dispatch.constants.len() != abi.constants {
            let (given, wanted) = (dispatch.constants.len(), abi.constants);
            return Err(format!("{name} takes {wanted} constants, not {given}"));
        }
        let groups = dispatch.grid.into_iter().try_fold(1u32, u32::checked_mul);
        if groups.is_none() && !dispatch.grid.contains(&0) {
            return Err(format!("{name}: the grid {:?} has more than 2^32 - 1 groups", dispatch.grid));
        }
        self.check_bindings(abi, dispatch)?;
        match gemms.get(dispatch.entry as usize) {
            Some(Some(gemm)) if !dispatch.grid.contains(&0) => check_product(name, gemm, dispatch),
            _ => Ok(()),
        }
    }

    fn check_bindings(&self, abi: &EntryAbi, dispatch: &Dispatch) -> Rule {
        let name = abi.name;
        let mut extents = vec![0; abi.bindings.len()];
        (abi.extents)(&dispatch.constants, &mut extents);
        for (at, binding) in dispatch.bindings.iter().enumerate() {
            self.check_binding(binding, abi.bindings[at], extents[at])
                .map_err(|what| format!("{name}, binding {at}: {what}"))?;
            let clash = |other: &Binding| {
                (binding.access != Access::Read || other.access != Access::Read)
                    && overlap(&binding.range, &other.range)
            };
            if let Some(other) = dispatch.bindings[..at].iter().position(clash) {
                return Err(format!("{name}: bindings {other} and {at} overlap, and one is written"));
            }
        }
        Ok(())
    }

    fn check_binding(&self, binding: &Binding, access: Access, extent: u64) -> Rule {
        let range = &binding.range;
        self.check_range(range)?;
        if binding.access != access {
            return Err(format!("bound for {:?}, its access is {access:?}", binding.access));
        }
        if range.bytes > self.caps.max_binding_bytes {
            return Err(format!(
                "{} bytes; at most {} may be bound",
                range.bytes, self.caps.max_binding_bytes
            ));
        }
        if !range.offset.is_multiple_of(self.caps.binding_alignment_bytes.max(1)) {
            return Err(format!(
                "offset {} is no multiple of {}",
                range.offset, self.caps.binding_alignment_bytes
            ));
        }
        if range.bytes < extent {
            return Err(format!("{} bytes; the constants require {extent}", range.bytes));
        }
        Ok(())
    }
}

/// Returns true if two valid ranges overlap.
fn overlap(a: &BufferRange, b: &BufferRange) -> bool {
    a.buffer == b.buffer && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes
}

/// Checks the byte ranges of a matrix product. A library accesses whole matrices, even if the extents in the
/// ABI are smaller.
fn check_product(name: &str, gemm: &GemmEntry, dispatch: &Dispatch) -> Rule {
    let product = (gemm.product)(&dispatch.constants);
    if !product.is_sound() {
        return Err(format!("{name}: no library computes {product:?}"));
    }
    for (at, extent) in gemm.bindings.into_iter().zip(product.extents()) {
        match dispatch.bindings.get(at).map(|binding| binding.range.bytes) {
            Some(bytes) if extent <= bytes => {}
            bytes => return Err(format!("{name}, binding {at}: {bytes:?} bytes, its product {extent}")),
        }
    }
    Ok(())
}

/// Returns one item for each entry: `Some` for a product, `None` for a kernel. Returns an empty list if the
/// module links to no library.
fn gemms(source: &ModuleSource) -> Vec<Option<GemmEntry>> {
    let gemm = |entry: &LinkedEntry| match entry {
        LinkedEntry::Gemm(gemm) => Some(*gemm),
        LinkedEntry::Text(_) => None,
    };
    match source {
        ModuleSource::Linked { entries, .. } => entries.iter().map(gemm).collect(),
        _ => Vec::new(),
    }
}

/// Checks that a product binds x and W for reading, and y for reading and writing.
fn check_gemm(abi: &EntryAbi, gemm: &GemmEntry) -> Rule {
    let access = |at: usize| abi.bindings.get(at).copied();
    match gemm.bindings.map(access) {
        [Some(Access::Read), Some(Access::Read), Some(Access::ReadWrite)] => Ok(()),
        found => Err(format!("{}: a product whose bindings are {found:?}", abi.name)),
    }
}

/// Checks that the code of a module matches its entries and that the device accepts the module.
fn check_module(module: &Module, caps: &Caps) -> error::Result<()> {
    let mut groups: Vec<[u32; 3]> = Vec::new();
    let (language, functions) = match &module.source {
        ModuleSource::Host(functions) => (Some(KernelLanguage::Host), functions.len()),
        ModuleSource::Text { language, entries } => {
            groups.extend(entries.iter().map(|entry| entry.function.work_group));
            (Some(*language), entries.len())
        }
        ModuleSource::Linked { language, entries } => {
            groups.extend(entries.iter().filter_map(|entry| match entry {
                LinkedEntry::Text(text) => Some(text.function.work_group),
                LinkedEntry::Gemm(_) => None,
            }));
            (*language, entries.len())
        }
        ModuleSource::SpirV { entries } => {
            groups.extend(entries.iter().map(|entry| entry.function.work_group));
            (Some(KernelLanguage::SpirV), entries.len())
        }
    };
    if let Some(language) = language.filter(|language| !caps.languages.contains(language)) {
        return Err(Error::Unsupported { what: format!("module {} in {language:?}", module.name) });
    }
    if functions != module.entries.len() {
        return Err(Error::invalid(format!(
            "module {} has {} entries and {functions} functions",
            module.name,
            module.entries.len()
        )));
    }
    for (abi, gemm) in module.entries.iter().zip(gemms(&module.source)) {
        let Some(gemm) = gemm else { continue };
        if caps.gemm.is_none() {
            return Err(Error::Unsupported { what: format!("products by a library in {}", module.name) });
        }
        check_gemm(abi, &gemm).map_err(Error::invalid)?;
    }
    let items = |group: &[u32; 3]| group.iter().fold(1u32, |product, side| product.saturating_mul(*side));
    let fits = |group: &[u32; 3]| (1..=caps.max_work_group_items).contains(&items(group));
    if let Some(group) = groups.iter().find(|group| !fits(group)) {
        return Err(Error::invalid(format!(
            "module {} has a group of {group:?} work items; the device takes 1 to {}",
            module.name, caps.max_work_group_items
        )));
    }
    Ok(())
}
