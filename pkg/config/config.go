// Package config reads config.toml: what it may say, its defaults and its
// checks. It knows nothing of Kubernetes.
package config

import (
	"slices"
	"time"
)

// Config is the whole of config.toml.
type Config struct {
	Node      Node      `toml:"node"`
	Driver    Driver    `toml:"driver"`
	Injection Injection `toml:"injection"`
	Placement Placement `toml:"placement"`
	Memory    Memory    `toml:"memory"`
	Compute   Compute   `toml:"compute"`
	Sharing   Sharing   `toml:"sharing"`
	Health    Health    `toml:"health"`
	Dialects  Dialects  `toml:"dialects"`
	Detection Detection `toml:"detection"`
	NRI       NRI       `toml:"nri"`
	Guard     Guard     `toml:"guard"`
	Paths     Paths     `toml:"paths"`
	HTTP      HTTP      `toml:"http"`
	Metrics   Metrics   `toml:"metrics"`
	Log       Log       `toml:"log"`
}

// Node is what holds for all GPUs of the node.
type Node struct {
	// ReservedMemoryMiB is kept back on every GPU and never advertised.
	ReservedMemoryMiB uint64 `toml:"reserved_memory_mib"`
	// SlotsPerGPU bounds the containers on one GPU.
	SlotsPerGPU int `toml:"slots_per_gpu"`
	// ExemptNamespaces are where containers that ask for nothing are left untouched.
	ExemptNamespaces []string `toml:"exempt_namespaces"`
}

// Driver says where the NVIDIA driver's user-space libraries are.
type Driver struct {
	// Root is the driver's root file system as the agent sees it; "" or "/"
	// where the libraries are the agent's own.
	Root string `toml:"root"`
	// NVMLLibrary is libnvidia-ml.so.1's path; "" looks for it under Root.
	NVMLLibrary string `toml:"nvml_library"`
}

// Injection methods.
const (
	InjectAuto   = "auto"   // cdi where the runtime can and a spec names the GPU, else env
	InjectCDI    = "cdi"    // CDI devices through NRI
	InjectEnv    = "env"    // NVIDIA_VISIBLE_DEVICES, for the NVIDIA container runtime
	InjectDirect = "direct" // device nodes and libraries, by ourselves
)

// Capabilities of the driver, as the NVIDIA container toolkit names what
// NVIDIA_DRIVER_CAPABILITIES can ask for.
const (
	CapabilityCompute  = "compute"  // CUDA and OpenCL
	CapabilityUtility  = "utility"  // NVML and nvidia-smi
	CapabilityGraphics = "graphics" // OpenGL and Vulkan
	CapabilityDisplay  = "display"  // X11
	CapabilityVideo    = "video"    // the encoder and the decoder
	CapabilityNGX      = "ngx"      // NGX
	CapabilityCompat32 = "compat32" // 32-bit libraries
)

// Capabilities lists them all.
var Capabilities = []string{
	CapabilityCompute, CapabilityUtility, CapabilityGraphics, CapabilityDisplay, CapabilityVideo, CapabilityNGX, CapabilityCompat32,
}

// Injection is how a container gets its GPUs.
type Injection struct {
	Method string `toml:"method"`
	// CDIKind is the vendor/class whose devices are named by GPU UUID.
	CDIKind string `toml:"cdi_kind"`
	// CDISpecDirs are searched for specs of CDIKind, as the runtime does.
	CDISpecDirs []string `toml:"cdi_spec_dirs"`
	// CDIOutputDir receives our own spec, whose devices set the environment
	// that a user's image and pod cannot override.
	CDIOutputDir string `toml:"cdi_output_dir"`
	// DriverCapabilities are what a container with limits may have of the driver.
	DriverCapabilities []string `toml:"driver_capabilities"`
	// InterposeWholeGPUs puts the interposer also before programs that have
	// nothing to be held to, as their container has its GPUs for itself.
	InterposeWholeGPUs bool   `toml:"interpose_whole_gpus"`
	Direct             Direct `toml:"direct"`
}

// Direct lists what InjectDirect gives a container. In every string
// "{minor}", "{index}" and "{uuid}" stand for the GPU's; entries without one
// are injected once.
type Direct struct {
	Devices []string      `toml:"devices"` // character devices
	Mounts  []DirectMount `toml:"mounts"`
}

// DirectMount is a bind mount of InjectDirect.
type DirectMount struct {
	Source      string `toml:"source"`
	Destination string `toml:"destination"`
	ReadOnly    bool   `toml:"read_only"`
}

// Placement policies.
const (
	PlaceBinpack = "binpack"
	PlaceSpread  = "spread"
)

// Placement is how GPUs are chosen.
type Placement struct {
	Policy string `toml:"policy"`
	// EvictAfter is how many times a container that fits no GPU is refused
	// before its pod is evicted; 0 is never.
	EvictAfter int `toml:"evict_after"`
}

// Memory is what a limit on a GPU's memory means.
type Memory struct {
	// OvercommitPercent is how far above what it asks for a pod may set its
	// limit by an annotation, in percent of what it asks for; 0 is not at all.
	OvercommitPercent int `toml:"overcommit_percent"`
	// ContextMiB is what a CUDA context takes, in MiB; 0: it is measured.
	ContextMiB int `toml:"context_mib"`
}

// ContextBytes is what a CUDA context takes, in bytes; 0: it is measured.
func (m Memory) ContextBytes() uint64 { return uint64(max(0, m.ContextMiB)) << 20 }

// Policies of compute limits: what the maximum of a container is, whose limit is its guarantee.
const (
	ComputeCap   = "cap"   // the guarantee
	ComputeShare = "share" // all of the GPU's time
)

// Compute is the maximum of containers with a limit on a GPU's time.
type Compute struct {
	Policy string `toml:"policy"`
	// PodsMayChoose lets a pod have another maximum, by an annotation.
	PodsMayChoose bool `toml:"pods_may_choose"`
}

// How containers with parts of a GPU share it.
const (
	ShareByTime = "time" // by turns, held to their parts by the interposer
	ShareByMPS  = "mps"  // side by side, through the Multi-Process Service
)

// What becomes of the compute mode of GPUs that are shared by MPS.
const (
	ModeKeep             = "keep"
	ModeExclusiveProcess = "exclusive-process" // while the daemon runs
)

// Sharing is how containers with parts of a GPU share it.
type Sharing struct {
	Method string `toml:"method"`
	// MPSGPUs are those that ShareByMPS is for, by UUID; "*" is every GPU.
	MPSGPUs []string `toml:"mps_gpus"`
	MPS     MPS      `toml:"mps"`
}

// ByMPS reports whether a GPU is shared through the Multi-Process Service.
func (s Sharing) ByMPS(uuid string) bool {
	return s.Method == ShareByMPS && (slices.Contains(s.MPSGPUs, AllGPUs) || slices.Contains(s.MPSGPUs, uuid))
}

// MPS is the driver's Multi-Process Service.
type MPS struct {
	// Root is the root of the file system with the control program, as the host
	// sees it, and ControlProgram its path there.
	Root           string `toml:"root"`
	ControlProgram string `toml:"control_program"`
	// ClientsPerGPU is how many clients a GPU can serve, and
	// ClientsPerContainer as how many a container counts.
	ClientsPerGPU       int `toml:"clients_per_gpu"`
	ClientsPerContainer int `toml:"clients_per_container"`
	// ReservedMemoryMiB is kept back for the server, on every GPU that it serves.
	ReservedMemoryMiB uint64 `toml:"reserved_memory_mib"`
	ComputeMode       string `toml:"compute_mode"`
	// SHMSizeMiB bounds the /dev/shm that the server and its clients share.
	SHMSizeMiB uint64 `toml:"shm_size_mib"`
}

// When a Node with unhealthy GPUs is tainted.
const (
	TaintOff = "off" // never
	TaintAny = "any" // while one of its GPUs is unhealthy
	TaintAll = "all" // while all of them are
)

// Health is when a GPU takes no new containers.
type Health struct {
	// IgnoredXIDs are errors of the driver after which a GPU is as good as
	// before; all others make it unhealthy.
	IgnoredXIDs []int `toml:"ignored_xids"`
	// Taint says when the Node gets a taint for its GPUs.
	Taint string `toml:"taint"`
}

// Dialects are the languages in which pods may ask.
type Dialects struct {
	Native  Native  `toml:"native"`
	Alnair  Alnair  `toml:"alnair"`
	AWS     AWS     `toml:"aws"`
	Volcano Volcano `toml:"volcano"`
	MetaGPU MetaGPU `toml:"metagpu"`
}

// Native is our own dialect.
type Native struct {
	Enabled bool   `toml:"enabled"`
	Number  string `toml:"number"`
	Memory  string `toml:"memory"` // MiB per GPU
	Cores   string `toml:"cores"`  // percent per GPU
}

// Alnair is CentaurusInfra's dialect.
type Alnair struct {
	Enabled bool   `toml:"enabled"`
	Memory  string `toml:"memory"`  // GiB of one GPU
	Compute string `toml:"compute"` // percent of one GPU
}

// AWS is the dialect of the AWS virtual GPU device plugin.
type AWS struct {
	Enabled     bool   `toml:"enabled"`
	Slots       string `toml:"slots"`
	SlotsPerGPU int    `toml:"slots_per_gpu"`
	// NodeLabel, "key=value" or "key", is that of the Nodes that offer slots;
	// "" is all of them.
	NodeLabel string `toml:"node_label"`
}

// Volcano is the dialect of the Volcano vGPU device plugin.
type Volcano struct {
	Enabled          bool   `toml:"enabled"`
	Number           string `toml:"number"`
	Memory           string `toml:"memory"`            // MiB per GPU
	MemoryPercentage string `toml:"memory_percentage"` // percent per GPU
	Cores            string `toml:"cores"`             // percent per GPU
	NumberPerGPU     int    `toml:"number_per_gpu"`
}

// MetaGPU is cnvrg's dialect.
type MetaGPU struct {
	Enabled bool `toml:"enabled"`
	// AllowSpread lets a request of less than one GPU that fits no single
	// GPU be spread over several.
	AllowSpread   bool            `toml:"allow_spread"`
	DeviceSharing []DeviceSharing `toml:"device_sharing"`
}

// DeviceSharing offers some GPUs as shares under one name.
type DeviceSharing struct {
	ResourceName string   `toml:"resource_name"`
	SharesPerGPU int      `toml:"shares_per_gpu"`
	AutoReshare  bool     `toml:"auto_reshare"` // SharesPerGPU does not count
	UUIDs        []string `toml:"uuids"`        // "*" is every GPU
}

// resharedPerGPU is how many shares a GPU has where AutoReshare says so.
const resharedPerGPU = 100

// PerGPU is how many shares a GPU has.
func (s DeviceSharing) PerGPU() int {
	if s.AutoReshare {
		return resharedPerGPU
	}
	return s.SharesPerGPU
}

// What is done about processes that use GPUs and should not.
const (
	DetectIgnore = "ignore" // nothing; for those outside of pods alone
	DetectReport = "report" // say so: metric, Event, log
	DetectStop   = "stop"   // say so, and kill them
)

// Detection looks for processes on the GPUs that no container accounts for.
type Detection struct {
	// Interval is how often the driver is asked for its processes.
	Interval Duration `toml:"interval"`
	// Action is for processes in pods, HostAction for all others.
	Action     string `toml:"action"`
	HostAction string `toml:"host_action"`
}

// NRI is the connection to the container runtime.
type NRI struct {
	SocketPath  string `toml:"socket_path"`
	PluginName  string `toml:"plugin_name"`
	PluginIndex string `toml:"plugin_index"`
	// PodWait bounds the wait, inside CreateContainer, for a pod that the
	// watch has not brought yet.
	PodWait Duration `toml:"pod_wait"`
}

// Guard is the plugin that the runtime starts itself, and what is done about
// containers that nevertheless run without us.
type Guard struct {
	// PluginDir is where the runtime takes its plugins from; "" installs no
	// guard.
	PluginDir string `toml:"plugin_dir"`
	// StopUnadjusted stops running containers that ask for GPUs, or see some,
	// and carry no limits.
	StopUnadjusted bool `toml:"stop_unadjusted"`
}

// Paths are the places on the host; see docs/architecture.md.
type Paths struct {
	// InstallDir holds a directory of libraries per version.
	InstallDir string `toml:"install_dir"`
	// RunDir holds node.json and the containers' files.
	RunDir string `toml:"run_dir"`
	// StateDir holds what must outlive a reboot of the node.
	StateDir string `toml:"state_dir"`
}

// Exporters whose names there can be besides our own.
const (
	LegacyVolcano = "volcano"
	LegacyMetaGPU = "metagpu"
)

// Metrics is what Prometheus is told.
type Metrics struct {
	// LegacyNames are the exporters under whose names it is told, too.
	LegacyNames []string `toml:"legacy_names"`
	// Authentication is who says who may read them.
	Authentication string `toml:"authentication"`
}

// Who says who may read metrics.
const (
	AuthenticateNobody  = "none"       // everybody may
	AuthenticateCluster = "kubernetes" // the API server, by TokenReview and SubjectAccessReview
)

// HTTP says where the agent serves health, readiness and metrics.
type HTTP struct {
	Address string `toml:"address"`
	// ProbeAddress serves health and readiness alone, to kubelet.
	ProbeAddress string `toml:"probe_address"`
}

// Log is what is logged, and how.
type Log struct {
	Level  string `toml:"level"`  // debug, info, warn, error
	Format string `toml:"format"` // text, json
}

// Duration is a time.Duration written like "1s" or "200ms".
type Duration struct{ time.Duration }
