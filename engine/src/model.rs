//! Opening models. A [`Model`] holds the open files, the operator graph, the tokenizer and the digests.

use crate::embedding::Pooling;
use crate::error::{Error, Result};
use crate::source::FileSource;
use ragtag_chat::Template;
use ragtag_graph::tokenizer::Tokenizer;
use ragtag_graph::{
    ChatTemplates, Directory, FormatError, Granularity, Hyperparameters, MemorySource, ModelError, ModelFile,
    RopeScaling, Source, SourceError, checkpoint,
};
use ragtag_kernels::TensorType;
use ragtag_planner::PlanModel;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// File name of the bundled model.
pub const BUNDLED_MODEL: &str = "tales-bitnet-tq2_0.gguf";

/// Bytes of a file that are read and hashed at a time, on all threads.
const HASHED_BYTES: usize = 16 << 20;

#[cfg(feature = "bundled-model")]
static BUNDLED_BYTES: &[u8] = include_bytes!("../models/tales-bitnet-tq2_0.gguf");

/// A model. It is cheap to clone. Opening a model reads only the headers of its files. An engine reads the
/// weights when it starts.
#[derive(Clone)]
pub struct Model {
    inner: Arc<Inner>,
}

struct Inner {
    name: String,
    graph: ragtag_graph::Model,
    /// Files that contain weights. [`TensorInfo::shard`](ragtag_graph::TensorInfo::shard) is an index into
    /// this list.
    shards: Vec<Arc<dyn Source>>,
    /// Names and contents of the files that contain no weights.
    others: Vec<(String, Arc<dyn Source>)>,
    /// Scaling of [`Model::with_rope_scaling`].
    rope_scaling: Option<RopeScaling>,
    tokenizer: OnceLock<Tokenizer>,
    digest: OnceLock<String>,
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model").field("name", &self.inner.name).finish_non_exhaustive()
    }
}

impl Model {
    /// Opens a `.gguf` file, or a directory with `config.json` and safetensors files. For a model that is
    /// split over several `.gguf` files, `path` may name any of them. All of them must be in the same folder.
    ///
    /// # Errors
    /// Returns [`Error::File`] if a file cannot be read, and [`Error::Model`] if the model is invalid or
    /// unsupported.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        if path.is_dir() {
            return Self::open_directory(path);
        }
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            let what = "a single safetensors file (use its directory instead)".into();
            let cause = ModelError::Unsupported { what };
            return Err(Error::Model { name: path.display().to_string(), cause });
        }
        let sources = shard_paths(path).iter().map(|shard| open(shard)).collect::<Result<_>>()?;
        Self::from_sources(file_name(path), sources)
    }

    /// Returns the files that a model may consist of. `path` is any of these files, or their directory.
    pub fn files_at(path: impl AsRef<Path>) -> Vec<PathBuf> {
        let path = path.as_ref();
        let Ok(folder) = std::fs::read_dir(path) else { return shard_paths(path) };
        let of_model = |path: &PathBuf| {
            checkpoint::FILES.contains(&file_name(path).as_str())
                || path.extension().is_some_and(|extension| extension == "safetensors")
        };
        folder.filter_map(|entry| Some(entry.ok()?.path())).filter(of_model).collect()
    }

    fn open_directory(path: &Path) -> Result<Self> {
        let (name, mut directory) = directory(path)?;
        let model_error = |cause| Error::Model { name: name.clone(), cause };
        let names = checkpoint::shard_names(&directory).map_err(|e| model_error(e.into()))?;
        let mut shards = Vec::new();
        for name in &names {
            let shard = match directory.file(name) {
                Some(shard) => Arc::clone(shard),
                None => open(&path.join(name))?,
            };
            directory.insert(name, Arc::clone(&shard));
            shards.push(shard);
        }
        let others = directory.files().filter(|(name, _)| !names.iter().any(|shard| shard == name));
        let others = others.map(|(name, source)| (name.to_owned(), Arc::clone(source))).collect();
        let graph = ragtag_graph::Model::from_directory(directory).map_err(model_error)?;
        Ok(Self::new(name, graph, shards, others))
    }

    /// Opens a model like [`Model::open`], but accepts models without weights: `.gguf` files that end after
    /// their headers, and directories with only `config.json`. The planner can plan for such a model, but no
    /// engine can run it. In a directory without weights, `matrices` sets the tensor type of the matrices. By
    /// default, it is the type in `config.json`.
    ///
    /// # Errors
    /// Fails like [`Model::open`]. Returns [`Error::Usage`] if `matrices` is given for a model with weights.
    pub fn open_metadata(path: impl AsRef<Path>, matrices: Option<TensorType>) -> Result<Self> {
        let path = path.as_ref();
        if path.is_dir() && !has_weights(path) {
            let (name, directory) = directory(path)?;
            let others =
                directory.files().map(|(name, source)| (name.to_owned(), Arc::clone(source))).collect();
            let graph = ragtag_graph::Model::described(directory, matrices);
            let graph = graph.map_err(|cause| Error::Model { name: name.clone(), cause })?;
            return Ok(Self::new(name, graph, Vec::new(), others));
        }
        if matrices.is_some() {
            let path = path.display();
            return Err(Error::Usage(format!(
                "cannot assume a tensor type for {path}: its weights have types"
            )));
        }
        if path.is_dir() || path.extension().is_some_and(|extension| extension == "safetensors") {
            return Self::open(path);
        }
        let sources = shard_paths(path).iter().map(|shard| open(shard)).collect::<Result<_>>()?;
        Self::from_headers(file_name(path), sources)
    }

    /// Opens only the tokenizer of a model. A `.gguf` file may have no weights, and a directory needs only the files
    /// of its tokenizer. The architecture of the model need not be supported.
    ///
    /// # Errors
    /// Returns [`Error::File`] if a file cannot be read, [`Error::Model`] if a `.gguf` file is invalid, and
    /// [`Error::Tokenizer`] if there is no tokenizer, or one that is damaged or unsupported.
    pub fn open_tokenizer(path: impl AsRef<Path>) -> Result<Tokenizer> {
        let path = path.as_ref();
        let (name, tokenizer) = if path.is_dir() {
            let (name, directory) = directory(path)?;
            (name, Tokenizer::from_directory(&directory))
        } else {
            let name = file_name(path);
            let sources = shard_paths(path).iter().map(|shard| open(shard)).collect::<Result<_>>()?;
            let file = ModelFile::open_headers(sources);
            let file = file.map_err(|cause| Error::Model { name: name.clone(), cause: cause.into() })?;
            (name, Tokenizer::from_metadata(&file.metadata))
        };
        tokenizer.map_err(|cause| Error::Tokenizer { name, cause })
    }

    /// Opens the model that is embedded in this build.
    ///
    /// # Errors
    /// Returns [`Error::Usage`] if this build lacks the feature `bundled-model`.
    pub fn bundled() -> Result<Self> {
        #[cfg(feature = "bundled-model")]
        return Self::from_sources(
            BUNDLED_MODEL.into(),
            vec![Arc::new(MemorySource::new(format!("bundled {BUNDLED_MODEL}"), BUNDLED_BYTES))],
        );
        #[cfg(not(feature = "bundled-model"))]
        Err(Error::Usage("this build has no bundled model; name a .gguf file".into()))
    }

    /// Opens a model from the bytes of a `.gguf` file. Error messages refer to the file as `name`.
    ///
    /// # Errors
    /// Returns [`Error::Model`] if the model is invalid or unsupported.
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Result<Self> {
        Self::from_sources(name.into(), vec![Arc::new(MemorySource::new(name, bytes))])
    }

    fn from_sources(name: String, sources: Vec<Arc<dyn Source>>) -> Result<Self> {
        Self::from_file(name, ModelFile::open(sources.clone()), sources)
    }

    fn from_headers(name: String, sources: Vec<Arc<dyn Source>>) -> Result<Self> {
        Self::from_file(name, ModelFile::open_headers(sources.clone()), sources)
    }

    fn from_file(
        name: String,
        file: std::result::Result<ModelFile, FormatError>,
        sources: Vec<Arc<dyn Source>>,
    ) -> Result<Self> {
        let graph = file.map_err(ModelError::from).and_then(ragtag_graph::Model::new);
        let graph = graph.map_err(|cause| Error::Model { name: name.clone(), cause })?;
        Ok(Self::new(name, graph, sources, Vec::new()))
    }

    fn new(
        name: String,
        graph: ragtag_graph::Model,
        shards: Vec<Arc<dyn Source>>,
        others: Vec<(String, Arc<dyn Source>)>,
    ) -> Self {
        let (tokenizer, digest) = (OnceLock::new(), OnceLock::new());
        let rope_scaling = None;
        Self { inner: Arc::new(Inner { name, graph, shards, others, rope_scaling, tokenizer, digest }) }
    }

    /// Returns the same model with another graph.
    fn with_graph(&self, graph: ragtag_graph::Model, rope_scaling: Option<RopeScaling>) -> Self {
        let Inner { name, shards, others, .. } = &*self.inner;
        let (name, shards, others) = (name.clone(), shards.clone(), others.clone());
        let (tokenizer, digest) = (OnceLock::new(), OnceLock::new());
        Self { inner: Arc::new(Inner { name, graph, shards, others, rope_scaling, tokenizer, digest }) }
    }

    /// Returns the same model with `scaling` instead of its own RoPE scaling, for contexts beyond the length
    /// that it was trained for. Its context becomes its original context times the factor.
    ///
    /// # Errors
    /// Returns [`Error::Model`] if the model's tensors do not fit its architecture.
    pub fn with_rope_scaling(&self, scaling: RopeScaling) -> Result<Self> {
        let graph = self.inner.graph.with_rope_scaling(scaling);
        let graph = graph.map_err(|cause| Error::Model { name: self.name().into(), cause })?;
        Ok(self.with_graph(graph, Some(scaling)))
    }

    /// Returns the scaling of [`with_rope_scaling`](Self::with_rope_scaling), if it was called.
    pub fn rope_scaling(&self) -> Option<RopeScaling> {
        self.inner.rope_scaling
    }

    /// Returns the same model for embeddings. Its engine returns the rows of the last norm in place of logits, and does not
    /// load the projection to logits.
    ///
    /// # Errors
    /// Returns [`Error::Model`] if the model's tensors do not fit its architecture, and the errors of
    /// [`Pooling::of`].
    pub fn for_embeddings(&self) -> Result<Self> {
        let graph = self.inner.graph.with_hidden_rows();
        let graph = graph.map_err(|cause| Error::Model { name: self.name().into(), cause })?;
        let model = self.with_graph(graph, self.rope_scaling());
        Pooling::of(&model)?;
        Ok(model)
    }

    /// Returns whether the model is [for embeddings](Self::for_embeddings).
    pub fn is_for_embeddings(&self) -> bool {
        self.hyperparameters().extras.returns_hidden
    }

    /// Returns the name of the model's file or directory, without the folder that contains it.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Returns the hyperparameters from the model's files.
    pub fn hyperparameters(&self) -> &Hyperparameters {
        self.inner.graph.hyperparameters()
    }

    /// Returns the model's tensors, operators and segments.
    pub fn graph(&self) -> &ragtag_graph::Model {
        &self.inner.graph
    }

    /// Returns the total size of the model's files, in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.files().map(|source| source.bytes()).sum()
    }

    /// Returns all files of the model. Files with weights come first.
    pub(crate) fn files(&self) -> impl Iterator<Item = &dyn Source> {
        let others = self.inner.others.iter().map(|(_, source)| source);
        self.inner.shards.iter().chain(others).map(|source| source.as_ref())
    }

    /// Returns the tokenizer. The first call builds it from the model's files.
    ///
    /// # Errors
    /// Returns [`Error::Tokenizer`] if the files contain no tokenizer, or one that is damaged or unsupported.
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        if let Some(tokenizer) = self.inner.tokenizer.get() {
            return Ok(tokenizer);
        }
        let tokenizer = self
            .inner
            .graph
            .tokenizer()
            .map_err(|cause| Error::Tokenizer { name: self.name().into(), cause })?;
        Ok(self.inner.tokenizer.get_or_init(|| tokenizer))
    }

    /// Returns whether the tokenizer has been built.
    pub(crate) fn has_built_tokenizer(&self) -> bool {
        self.inner.tokenizer.get().is_some()
    }

    /// Returns the sources of the chat templates and the texts of special tokens. A model may have none.
    ///
    /// # Errors
    /// Returns [`Error::Model`] if the files of the templates are damaged.
    pub fn chat_templates(&self) -> Result<ChatTemplates> {
        let found = self.inner.graph.chat_templates();
        found.map_err(|cause| Error::Model { name: self.name().into(), cause: cause.into() })
    }

    /// Compiles a chat template. Without a name, it is the default template. If there are tools and the
    /// model has a template for tools, it is that template.
    ///
    /// # Errors
    /// Returns [`Error::NoTemplate`] if the model has no such template, and [`Error::Template`] if it is
    /// invalid.
    pub fn chat_template(&self, name: Option<&str>, has_tools: bool) -> Result<Template> {
        let templates = self.chat_templates()?;
        let Some(source) = templates.find(name, has_tools) else {
            let wanted = name.map_or("chat template".into(), |name| format!("chat template called {name:?}"));
            let known = templates.names().map(str::to_owned).collect();
            return Err(Error::NoTemplate { name: self.name().into(), wanted, known });
        };
        Template::compile(source).map_err(|cause| Error::Template { name: self.name().into(), cause })
    }

    /// Returns the identity of the model in plans whose segments have this granularity.
    ///
    /// # Errors
    /// Fails like [`Model::fingerprint`].
    pub fn as_planned(&self, granularity: Granularity) -> Result<PlanModel> {
        let segments = self.graph().with_granularity(granularity).segment_count() as u32;
        Ok(PlanModel { name: self.name().into(), digest: self.fingerprint()?, segments, granularity })
    }

    /// Returns a digest that identifies the model. Computing it does not read the weights. The digest covers
    /// the headers, the sizes of the weights, and the files without weights. Plans contain this digest, so a
    /// plan made from only the header of a file is also valid for the complete file. [`Model::digest`]
    /// returns a digest of the complete content.
    ///
    /// # Errors
    /// Returns [`Error::Model`] if a file can no longer be read.
    pub fn fingerprint(&self) -> Result<String> {
        let tensors = self.inner.graph.weights().tensors();
        let mut hasher = blake3::Hasher::new();
        for (shard, source) in self.inner.shards.iter().enumerate() {
            let (mut header, mut end) = (source.bytes(), 0);
            for tensor in tensors.iter().filter(|t| t.shard == shard) {
                header = header.min(tensor.offset);
                end = end.max(tensor.offset.saturating_add(tensor.bytes));
            }
            hasher.update(&end.to_le_bytes());
            self.hash(&mut hasher, source.as_ref(), header)?;
        }
        // If no file has weights, the types of the tensors come from the options, so the digest must include
        // them.
        for tensor in tensors.iter().filter(|_| self.inner.shards.is_empty()) {
            hasher.update(tensor.tensor_type.name().as_bytes());
        }
        for (name, source) in &self.inner.others {
            hasher.update(name.as_bytes());
            hasher.update(&source.bytes().to_le_bytes());
            self.hash(&mut hasher, source.as_ref(), source.bytes())?;
        }
        Ok(format!("header-blake3:{}", &hasher.finalize().to_hex()[..32]))
    }

    /// Returns the BLAKE3 digest of the complete content of all files, in order. The first call reads all
    /// files and caches the digest.
    ///
    /// # Errors
    /// Returns [`Error::Model`] if a file can no longer be read.
    pub fn digest(&self) -> Result<String> {
        if let Some(digest) = self.inner.digest.get() {
            return Ok(digest.clone());
        }
        let mut hasher = blake3::Hasher::new();
        for source in self.files() {
            self.hash(&mut hasher, source, source.bytes())?;
        }
        Ok(self.inner.digest.get_or_init(|| format!("blake3:{}", hasher.finalize().to_hex())).clone())
    }

    /// Hashes the first `end` bytes of a file.
    fn hash(&self, hasher: &mut blake3::Hasher, source: &dyn Source, end: u64) -> Result<()> {
        let as_error = |cause: SourceError| Error::Model {
            name: self.name().into(),
            cause: FormatError::from(cause).into(),
        };
        for start in (0..end).step_by(HASHED_BYTES) {
            let piece = start..end.min(start + HASHED_BYTES as u64);
            hasher.update_rayon(&source.range(piece).map_err(as_error)?);
        }
        Ok(())
    }
}

fn open(path: &Path) -> Result<Arc<dyn Source>> {
    match FileSource::open(path) {
        Ok(file) => Ok(Arc::new(file)),
        Err(cause) => Err(Error::File { action: "read", path: path.into(), cause }),
    }
}

/// Opens those files of a model directory that exist, except the files with weights. Also returns the name of
/// the directory.
fn directory(path: &Path) -> Result<(String, Directory)> {
    // A path such as `..` has no file name.
    let name = match path.file_name() {
        Some(_) => file_name(path),
        None => path.canonicalize().map_or_else(|_| file_name(path), |path| file_name(&path)),
    };
    let mut directory = Directory::new(path.display().to_string());
    for file in checkpoint::FILES {
        // A missing file may be optional. The graph reports missing files that are required.
        if path.join(file).exists() {
            directory.insert(file, open(&path.join(file))?);
        }
    }
    Ok((name, directory))
}

/// Returns whether a directory contains a file with weights, or an index of such files.
fn has_weights(path: &Path) -> bool {
    checkpoint::WEIGHTS.iter().any(|file| path.join(file).exists())
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// Returns the paths of all files of a split model. `path` is any of these files. If `path` is not named like
/// a file of a split model, returns only `path`.
fn shard_paths(path: &Path) -> Vec<PathBuf> {
    match ragtag_graph::gguf::shard_names(&file_name(path)) {
        Some(names) => names.into_iter().map(|name| path.with_file_name(name)).collect(),
        None => vec![path.to_path_buf()],
    }
}
