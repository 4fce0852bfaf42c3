// SPDX-License-Identifier: Apache-2.0

// Package config reads config.toml, and defines the keys, their defaults and their checks. The
// package does not depend on Kubernetes.
package config

import (
	"slices"
	"time"
)

// Config is the content of config.toml.
type Config struct {
	Node       Node       `toml:"node"`
	Driver     Driver     `toml:"driver"`
	Injection  Injection  `toml:"injection"`
	Placement  Placement  `toml:"placement"`
	Scheduling Scheduling `toml:"scheduling"`
	Memory     Memory     `toml:"memory"`
	Compute    Compute    `toml:"compute"`
	Resize     Resize     `toml:"resize"`
	Sharing    Sharing    `toml:"sharing"`
	Health     Health     `toml:"health"`
	Dialects   Dialects   `toml:"dialects"`
	Detection  Detection  `toml:"detection"`
	NRI        NRI        `toml:"nri"`
	Guard      Guard      `toml:"guard"`
	Paths      Paths      `toml:"paths"`
	HTTP       HTTP       `toml:"http"`
	Metrics    Metrics    `toml:"metrics"`
	Log        Log        `toml:"log"`
}

// Node holds the settings for all GPUs of the node.
type Node struct {
	// ReservedMemoryMiB is the memory of every GPU that no container gets.
	ReservedMemoryMiB uint64 `toml:"reserved_memory_mib"`
	// SlotsPerGPU bounds the containers on one GPU.
	SlotsPerGPU int `toml:"slots_per_gpu"`
	// ExemptNamespaces are the namespaces in which the agent does not change containers that
	// request no GPU.
	ExemptNamespaces []string `toml:"exempt_namespaces"`
	// ForeignResources are the resources that other device plugins serve. A "*" at the end of an
	// element stands for any rest of the name.
	ForeignResources []string `toml:"foreign_resources"`
	// GPUs selects the GPUs that the node offers.
	GPUs NodeGPUs `toml:"gpus"`
}

// Driver locates the NVIDIA driver's user-space libraries.
type Driver struct {
	// Root is the driver's root file system as the agent sees it. Root is "" or "/" if the
	// libraries are in the agent's own file system.
	Root string `toml:"root"`
	// NVMLLibrary is the path of libnvidia-ml.so.1. "" selects a search under Root.
	NVMLLibrary string `toml:"nvml_library"`
}

// These constants are the injection methods.
const (
	InjectAuto   = "auto"   // cdi if the runtime supports it and a spec names the GPU, otherwise env
	InjectCDI    = "cdi"    // CDI devices through NRI
	InjectEnv    = "env"    // NVIDIA_VISIBLE_DEVICES, for the NVIDIA container runtime
	InjectDirect = "direct" // device nodes and libraries, added by the plugin
)

// These constants are the driver capabilities, as NVIDIA_DRIVER_CAPABILITIES names them.
const (
	CapabilityCompute  = "compute"  // CUDA and OpenCL
	CapabilityUtility  = "utility"  // NVML and nvidia-smi
	CapabilityGraphics = "graphics" // OpenGL and Vulkan
	CapabilityDisplay  = "display"  // X11
	CapabilityVideo    = "video"    // the encoder and the decoder
	CapabilityNGX      = "ngx"      // NGX
	CapabilityCompat32 = "compat32" // 32-bit libraries
)

// Capabilities lists all driver capabilities.
var Capabilities = []string{
	CapabilityCompute, CapabilityUtility, CapabilityGraphics, CapabilityDisplay, CapabilityVideo, CapabilityNGX, CapabilityCompat32,
}

// Injection configures how a container gets its GPUs.
type Injection struct {
	Method string `toml:"method"`
	// CDIKind is the vendor/class of the CDI devices whose names are GPU UUIDs.
	CDIKind string `toml:"cdi_kind"`
	// CDISpecDirs are the directories in which the agent searches for specs of CDIKind. The runtime
	// must also search CDISpecDirs.
	CDISpecDirs []string `toml:"cdi_spec_dirs"`
	// CDIOutputDir receives nri-vgpu's own spec. The devices of the spec set environment
	// variables that a user's image and pod cannot override.
	CDIOutputDir string `toml:"cdi_output_dir"`
	// DriverCapabilities are the driver capabilities that a container with limits may have.
	DriverCapabilities []string `toml:"driver_capabilities"`
	// InterposeWholeGPUs adds the interposer also to containers that hold whole GPUs, without
	// limits.
	InterposeWholeGPUs bool   `toml:"interpose_whole_gpus"`
	Direct             Direct `toml:"direct"`
}

// Direct lists the devices and mounts that InjectDirect adds to a container. "{minor}", "{index}"
// and "{uuid}" in a string stand for the GPU's values, and "{multiarch}" stands for Debian's name of
// the node's architecture. A container gets an entry that is equal for several GPUs once.
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

// These constants are the placement policies.
const (
	PlaceBinpack = "binpack"
	PlaceSpread  = "spread"
)

// Placement configures how the agent chooses GPUs.
type Placement struct {
	Policy string `toml:"policy"`
	// EvictAfter is the number of refusals of a container that fits no GPU before the agent evicts
	// the container's pod; 0 disables eviction.
	EvictAfter int `toml:"evict_after"`
}

// These constants are the modes of scheduling.
const (
	ScheduleBySums   = "sums"      // by a scheduler that knows the sums of the node's GPUs
	ScheduleByFit    = "fit"       // by the sums and by labels with the free capacity of single GPUs
	ScheduleByPlugin = "scheduler" // by nri-vgpu-scheduler
)

// Scheduling configures the data that the Node publishes about its GPUs.
type Scheduling struct {
	Mode string `toml:"mode"`
}

// Fit reports whether the Node has labels with the free capacity of its single GPUs.
func (s Scheduling) Fit() bool { return s.Mode == ScheduleByFit }

// ByPlugin reports whether nri-vgpu-scheduler binds the node's pods.
func (s Scheduling) ByPlugin() bool { return s.Mode == ScheduleByPlugin }

// Memory configures limits on GPU memory.
type Memory struct {
	// OvercommitPercent is the most by which a pod's annotation may raise a memory limit above the
	// request, in percent of the request. 0 forbids limits above the request.
	OvercommitPercent int `toml:"overcommit_percent"`
	// ContextMiB is the size of a CUDA context, in MiB; 0 selects measurement.
	ContextMiB int `toml:"context_mib"`
}

// ContextBytes returns the size of a CUDA context, in bytes, or 0 if the size is measured.
func (m Memory) ContextBytes() uint64 { return uint64(max(0, m.ContextMiB)) << 20 }

// These constants are the policies of compute limits. A container's limit is its guarantee; the
// policy sets its maximum.
const (
	ComputeCap   = "cap"   // the guarantee
	ComputeShare = "share" // all of the GPU's time
)

// Compute configures the maximum of containers with a limit on GPU time.
type Compute struct {
	Policy string `toml:"policy"`
	// PodsMayChoose allows pods to set another maximum by an annotation.
	PodsMayChoose bool `toml:"pods_may_choose"`
}

// Resize bounds how far containers may grow while they run.
type Resize struct {
	Maximum []ResizeMaximum `toml:"maximum"`
}

// ResizeMaximum is the largest part of a GPU that a resize beyond the pod's request may result in.
type ResizeMaximum struct {
	// Namespace is the namespace of the pods; "*" is every namespace without an entry.
	Namespace string `toml:"namespace"`
	// MemoryMiB and Cores, in percent of the GPU's time, are the maxima. 0 allows no more than the
	// request.
	MemoryMiB uint64 `toml:"memory_mib"`
	Cores     int    `toml:"cores"`
}

// AllNamespaces stands for every namespace without an entry.
const AllNamespaces = "*"

// Of returns the maximum for the pods of a namespace.
func (r Resize) Of(namespace string) ResizeMaximum {
	for _, name := range []string{namespace, AllNamespaces} {
		for _, m := range r.Maximum {
			if m.Namespace == name {
				return m
			}
		}
	}
	return ResizeMaximum{Namespace: namespace}
}

// These constants are the methods by which containers share a GPU.
const (
	ShareByTime = "time" // in turns; the interposer enforces the limits
	ShareByMPS  = "mps"  // concurrently, through the Multi-Process Service
)

// These constants are the policies for the compute mode of GPUs shared by MPS.
const (
	ModeKeep             = "keep"
	ModeExclusiveProcess = "exclusive-process" // while the daemon runs
)

// Sharing configures how containers share a GPU.
type Sharing struct {
	Method string `toml:"method"`
	// MPSGPUs are the GPUs to which ShareByMPS applies, by UUID; "*" is every GPU. Containers always
	// share MIG devices by time.
	MPSGPUs []string `toml:"mps_gpus"`
	MPS     MPS      `toml:"mps"`
}

// ByMPS reports whether containers share a GPU through the Multi-Process Service.
func (s Sharing) ByMPS(uuid string) bool {
	return s.Method == ShareByMPS && !isMIG(uuid) && (slices.Contains(s.MPSGPUs, AllGPUs) || slices.Contains(s.MPSGPUs, uuid))
}

// MPS configures the driver's Multi-Process Service.
type MPS struct {
	// Root is the root of the file system with the control program, as a path of the host.
	// ControlProgram is the program's path below Root.
	Root           string `toml:"root"`
	ControlProgram string `toml:"control_program"`
	// ClientsPerGPU is the number of clients that a GPU can serve. ClientsPerContainer is the
	// number of clients that a container counts as.
	ClientsPerGPU       int `toml:"clients_per_gpu"`
	ClientsPerContainer int `toml:"clients_per_container"`
	// ReservedMemoryMiB is the memory that the server may use on every GPU that the server serves.
	ReservedMemoryMiB uint64 `toml:"reserved_memory_mib"`
	ComputeMode       string `toml:"compute_mode"`
	// SHMSizeMiB bounds the /dev/shm that the server and its clients share.
	SHMSizeMiB uint64 `toml:"shm_size_mib"`
}

// These constants are the conditions under which the patcher taints a Node with unhealthy GPUs.
const (
	TaintOff = "off" // never
	TaintAny = "any" // while one of its GPUs is unhealthy
	TaintAll = "all" // while all of its GPUs are unhealthy
)

// Health configures when a GPU gets no new containers.
type Health struct {
	// IgnoredXIDs are driver errors that leave a GPU healthy. All other errors make a GPU
	// unhealthy.
	IgnoredXIDs []int `toml:"ignored_xids"`
	// Taint selects when the Node gets a taint for its GPUs.
	Taint string `toml:"taint"`
}

// Dialects are the sets of resources by which pods may request GPUs.
type Dialects struct {
	Native  Native  `toml:"native"`
	Alnair  Alnair  `toml:"alnair"`
	AWS     AWS     `toml:"aws"`
	Volcano Volcano `toml:"volcano"`
	HAMi    HAMi    `toml:"hami"`
	MetaGPU MetaGPU `toml:"metagpu"`
}

// These constants are the amounts of memory that a request in the native dialect for cores alone has.
const (
	MemoryProportional = "proportional" // the same percentage of memory as of cores
	MemoryAll          = "all"          // all memory of the GPU
)

// These constants are values of Native.Amounts.
const (
	AmountsPerGPU = "per-gpu" // memory and time of each GPU
	AmountsTotal  = "total"   // memory and time of all GPUs of a container together
)

// Native is nri-vgpu's own dialect.
type Native struct {
	Enabled          bool   `toml:"enabled"`
	Number           string `toml:"number"`
	Memory           string `toml:"memory"`            // MiB per GPU
	MemoryPercentage string `toml:"memory_percentage"` // percent per GPU
	Cores            string `toml:"cores"`             // percent per GPU
	// MemoryOfCores is the amount of memory of a request that names cores and no memory.
	MemoryOfCores string `toml:"memory_of_cores"`
	// Amounts determines the meaning of amounts of memory and time.
	Amounts string `toml:"amounts"`
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
	// NodeLabel, "key=value" or "key", selects the Nodes that offer slots; "" selects all
	// Nodes.
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

// HAMi is HAMi's dialect for NVIDIA GPUs.
type HAMi struct {
	Enabled          bool   `toml:"enabled"`
	Number           string `toml:"number"`
	Memory           string `toml:"memory"`            // units of MemoryFactor MiB per GPU
	MemoryPercentage string `toml:"memory_percentage"` // percent per GPU
	Cores            string `toml:"cores"`             // percent per GPU
	Priority         string `toml:"priority"`          // without effect
	NumberPerGPU     int    `toml:"number_per_gpu"`
	// DefaultNumber, DefaultMemoryMiB and DefaultCores are the amounts of requests that do not name
	// them. A DefaultMemoryMiB of 0 stands for all memory.
	DefaultNumber    int    `toml:"default_number"`
	DefaultMemoryMiB uint64 `toml:"default_memory_mib"`
	DefaultCores     int    `toml:"default_cores"`
	// MemoryFactor is the number of MiB in a unit of Memory.
	MemoryFactor int `toml:"memory_factor"`
}

// MetaGPU is cnvrg's dialect.
type MetaGPU struct {
	Enabled bool `toml:"enabled"`
	// AllowSpread lets the agent spread a request of less than one GPU over several GPUs, if the
	// request fits no single GPU.
	AllowSpread   bool            `toml:"allow_spread"`
	DeviceSharing []DeviceSharing `toml:"device_sharing"`
}

// DeviceSharing offers some GPUs as shares under one resource name.
type DeviceSharing struct {
	ResourceName string   `toml:"resource_name"`
	SharesPerGPU int      `toml:"shares_per_gpu"`
	AutoReshare  bool     `toml:"auto_reshare"` // overrides SharesPerGPU
	UUIDs        []string `toml:"uuids"`        // "*" is every GPU
}

// resharedPerGPU is the number of shares of a GPU if AutoReshare is set.
const resharedPerGPU = 100

// PerGPU returns the number of shares of a GPU.
func (s DeviceSharing) PerGPU() int {
	if s.AutoReshare {
		return resharedPerGPU
	}
	return s.SharesPerGPU
}

// These constants are the actions against unaccounted processes on GPUs.
const (
	DetectIgnore = "ignore" // nothing; only for processes outside of pods
	DetectReport = "report" // report by metric, Event and log
	DetectStop   = "stop"   // report, and kill the processes
)

// Detection configures the search for unaccounted processes on GPUs.
type Detection struct {
	// Interval is the time between queries for the driver's processes.
	Interval Duration `toml:"interval"`
	// Action applies to processes in pods, HostAction to all other processes.
	Action     string `toml:"action"`
	HostAction string `toml:"host_action"`
}

// NRI configures the connection to the container runtime.
type NRI struct {
	SocketPath  string `toml:"socket_path"`
	PluginName  string `toml:"plugin_name"`
	PluginIndex string `toml:"plugin_index"`
	// PodWait bounds the wait inside CreateContainer for a pod that the watch has not delivered
	// yet.
	PodWait Duration `toml:"pod_wait"`
}

// Guard configures the guard plugin, which the runtime starts, and the handling of containers that
// run without adjustment.
type Guard struct {
	// PluginDir is the runtime's plugin directory. "" disables the guard.
	PluginDir string `toml:"plugin_dir"`
	// StopUnadjusted stops running containers without limits that request or see GPUs.
	StopUnadjusted bool `toml:"stop_unadjusted"`
}

// Paths are the directories on the host; see docs/reference/files.md.
type Paths struct {
	// InstallDir holds a directory of libraries per version.
	InstallDir string `toml:"install_dir"`
	// RunDir holds node.json and the containers' files.
	RunDir string `toml:"run_dir"`
	// StateDir holds the files that must survive a reboot of the node.
	StateDir string `toml:"state_dir"`
	// PodResourcesDir holds the socket at which kubelet lists the devices of device plugins.
	PodResourcesDir string `toml:"pod_resources_dir"`
}

// These constants are the exporters whose metric names the agent can serve in addition to its own.
const (
	LegacyVolcano = "volcano"
	LegacyMetaGPU = "metagpu"
)

// Metrics configures the metrics for Prometheus.
type Metrics struct {
	// LegacyNames are the exporters whose metric names the agent also serves.
	LegacyNames []string `toml:"legacy_names"`
	// Authentication selects who authorizes readers of the metrics.
	Authentication string `toml:"authentication"`
}

// These constants are the values of Metrics.Authentication.
const (
	AuthenticateNobody  = "none"       // no authorization: every client may read
	AuthenticateCluster = "kubernetes" // the API server, by TokenReview and SubjectAccessReview
)

// HTTP configures the addresses at which the agent serves metrics, health and readiness.
type HTTP struct {
	Address string `toml:"address"`
	// ProbeAddress serves only health and readiness, to kubelet.
	ProbeAddress string `toml:"probe_address"`
}

// Log configures the log.
type Log struct {
	Level  string `toml:"level"`  // debug, info, warn, error
	Format string `toml:"format"` // text, json
}

// Duration is a time.Duration in the form "1s" or "200ms".
type Duration struct{ time.Duration }
