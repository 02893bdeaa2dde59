//! Reads the kernels of a SPIR-V module: their names, parameters and required sizes. Level Zero checks
//! arguments against them.

use std::collections::HashMap;

/// Parameter of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parameter {
    /// Address in device memory.
    Address,
    /// Local memory. The caller sets its size.
    Local,
    /// Value of this size, or of unknown size.
    Value(Option<usize>),
}

/// Kernel of a module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signature {
    pub name: String,
    pub parameters: Vec<Parameter>,
    /// Required group size, if any.
    pub group: Option<[u32; 3]>,
    /// Required sub-group size, or 0.
    pub sub_group: u32,
}

const MAGIC: u32 = 0x0723_0203;

/// Declarations of a module, by identifier.
#[derive(Default)]
struct Module {
    sizes: HashMap<u32, usize>,
    /// Storage class of each pointer type.
    pointers: HashMap<u32, u32>,
    function_types: HashMap<u32, Vec<u32>>,
    functions: HashMap<u32, u32>,
    names: Vec<(u32, String)>,
    groups: HashMap<u32, [u32; 3]>,
    sub_groups: HashMap<u32, u32>,
}

/// Returns the kernels of a module, or `None` if the bytes are not a SPIR-V module.
pub fn kernels(code: &[u8]) -> Option<Vec<Signature>> {
    let words: Vec<u32> =
        code.chunks_exact(4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]])).collect();
    if !code.len().is_multiple_of(4) || words.len() < 5 || words[0] != MAGIC {
        return None;
    }
    let (mut module, mut rest) = (Module::default(), &words[5..]);
    while let Some(&first) = rest.first() {
        let length = (first >> 16) as usize;
        let instruction = rest.get(1..length)?;
        module.read(first & 0xffff, instruction)?;
        rest = &rest[length..];
    }
    module.names.iter().map(|(id, name)| module.signature(*id, name)).collect()
}

impl Module {
    fn read(&mut self, operation: u32, words: &[u32]) -> Option<()> {
        match (operation, words) {
            // OpEntryPoint of a kernel
            (15, [6, id, name @ ..]) => {
                let bytes = name.iter().flat_map(|word| word.to_le_bytes()).take_while(|byte| *byte != 0);
                self.names.push((*id, String::from_utf8(bytes.collect()).ok()?));
            }
            // OpExecutionMode LocalSize and SubgroupSize
            (16, [id, 17, x, y, z]) => drop(self.groups.insert(*id, [*x, *y, *z])),
            (16, [id, 35, items]) => drop(self.sub_groups.insert(*id, *items)),
            // OpTypeInt and OpTypeFloat
            (21 | 22, [id, bits, ..]) => drop(self.sizes.insert(*id, *bits as usize / 8)),
            // OpTypeVector: three elements take the room of four
            (23, [id, element, count]) => {
                let bytes = self.sizes.get(element)? * (*count as usize).next_power_of_two();
                self.sizes.insert(*id, bytes);
            }
            // OpTypePointer
            (32, [id, class, _]) => drop(self.pointers.insert(*id, *class)),
            // OpTypeFunction
            (33, [id, _, parameters @ ..]) => drop(self.function_types.insert(*id, parameters.to_vec())),
            // OpFunction
            (54, [_, id, _, kind]) => drop(self.functions.insert(*id, *kind)),
            _ => {}
        }
        Some(())
    }

    fn signature(&self, id: u32, name: &str) -> Option<Signature> {
        let types = self.function_types.get(self.functions.get(&id)?)?;
        let parameter = |kind: &u32| match self.pointers.get(kind) {
            // CrossWorkgroup and UniformConstant
            Some(5 | 0) => Parameter::Address,
            // Workgroup
            Some(4) => Parameter::Local,
            // Structures by value have a pointer type.
            Some(_) => Parameter::Value(None),
            None => Parameter::Value(self.sizes.get(kind).copied()),
        };
        Some(Signature {
            name: name.into(),
            parameters: types.iter().map(parameter).collect(),
            group: self.groups.get(&id).copied(),
            sub_group: self.sub_groups.get(&id).copied().unwrap_or_default(),
        })
    }
}
