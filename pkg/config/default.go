// SPDX-License-Identifier: Apache-2.0

package config

import "time"

// Default returns the configuration of an empty file, which equals config.toml
// at the root of the project.
func Default() Config {
	return Config{
		Node: Node{
			SlotsPerGPU:      10,
			ExemptNamespaces: []string{},
			ForeignResources: []string{"nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-*"},
			GPUs:             NodeGPUs{Include: []string{AllGPUs}, Exclude: []string{}},
		},
		Driver:     Driver{Root: "/"},
		Injection:  defaultInjection(),
		Placement:  Placement{Policy: PlaceBinpack, EvictAfter: 3},
		Scheduling: Scheduling{Mode: ScheduleBySums},
		Compute:    Compute{Policy: ComputeCap},
		Resize:     Resize{Maximum: []ResizeMaximum{{Namespace: AllNamespaces}}},
		Sharing:    defaultHowShared(),
		Health:     Health{IgnoredXIDs: ignoredXIDs(), Taint: TaintOff},
		Dialects:   defaultDialects(),
		Detection:  Detection{Interval: Duration{3 * time.Second}, Action: DetectReport, HostAction: DetectReport},
		NRI: NRI{
			SocketPath:  "/var/run/nri/nri.sock",
			PluginName:  "nri-vgpu",
			PluginIndex: "90",
			PodWait:     Duration{750 * time.Millisecond},
		},
		Guard:   Guard{PluginDir: "/opt/nri/plugins"},
		Paths:   Paths{InstallDir: "/opt/nri-vgpu", RunDir: "/run/nri-vgpu", StateDir: "/var/lib/nri-vgpu", PodResourcesDir: "/var/lib/kubelet/pod-resources"},
		HTTP:    HTTP{Address: ":9394", ProbeAddress: "127.0.0.1:9396"},
		Metrics: Metrics{LegacyNames: []string{}, Authentication: AuthenticateNobody},
		Log:     Log{Level: "info", Format: "text"},
	}
}

func defaultInjection() Injection {
	const lib = "/usr/lib/{multiarch}/"
	return Injection{
		Method:             InjectAuto,
		CDIKind:            "nvidia.com/gpu",
		CDISpecDirs:        []string{"/etc/cdi", "/var/run/cdi"},
		CDIOutputDir:       "/var/run/cdi",
		DriverCapabilities: []string{CapabilityCompute, CapabilityUtility},
		Direct: Direct{
			Devices: []string{
				"/dev/nvidia{minor}",
				"/dev/nvidiactl",
				"/dev/nvidia-uvm",
				"/dev/nvidia-uvm-tools",
			},
			Mounts: []DirectMount{
				{Source: lib + "libcuda.so.1", Destination: lib + "libcuda.so.1", ReadOnly: true},
				{Source: lib + "libnvidia-ml.so.1", Destination: lib + "libnvidia-ml.so.1", ReadOnly: true},
				{Source: lib + "libnvidia-ptxjitcompiler.so.1", Destination: lib + "libnvidia-ptxjitcompiler.so.1", ReadOnly: true},
			},
		},
	}
}

func defaultHowShared() Sharing {
	return Sharing{
		Method:  ShareByTime,
		MPSGPUs: []string{AllGPUs},
		MPS: MPS{
			Root:                "/",
			ControlProgram:      "/usr/bin/nvidia-cuda-mps-control",
			ClientsPerGPU:       48,
			ClientsPerContainer: 1,
			ReservedMemoryMiB:   64,
			ComputeMode:         ModeKeep,
			SHMSizeMiB:          4096,
		},
	}
}

// ignoredXIDs returns the errors that leave a GPU healthy: an application
// failed, or the driver handled the error. The first source is NVIDIA's
// catalogue
// (https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html), for errors that require a
// restart of the application or no action. The second source is NVIDIA's guide to memory errors
// (https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/). An unlisted number makes a GPU
// unhealthy, including numbers of future drivers.
func ignoredXIDs() []int {
	return []int{
		8,   // a channel made no progress: restart the application
		11,  // invalid push buffer: restart the application
		13,  // exception in a kernel: restart the application
		31,  // page fault: restart the application
		43,  // an application's error: the driver reset its channel
		45,  // clean-up after an application ended early, or after another XID
		63,  // a memory row is remapped at the next reset; new work may start
		68,  // exception of the video processor: restart the application
		92,  // many memory errors were corrected
		94,  // a memory error was contained: restart the application
		109, // a context switch timed out: restart the application
		154, // the recovery action changed; the agent queries it
	}
}

func defaultDialects() Dialects {
	return Dialects{
		Native: Native{
			Enabled:          true,
			Number:           "nri-vgpu.io/vgpu-number",
			Memory:           "nri-vgpu.io/vgpu-memory",
			MemoryPercentage: "nri-vgpu.io/vgpu-memory-percentage",
			Cores:            "nri-vgpu.io/vgpu-cores",
			MemoryOfCores:    MemoryProportional,
			Amounts:          AmountsPerGPU,
		},
		Alnair: Alnair{
			Enabled: true,
			Memory:  "alnair/vgpu-memory",
			Compute: "alnair/vgpu-compute",
		},
		AWS: AWS{Enabled: true, Slots: "k8s.amazonaws.com/vgpu", SlotsPerGPU: 10},
		Volcano: Volcano{
			Enabled:          true,
			Number:           "volcano.sh/vgpu-number",
			Memory:           "volcano.sh/vgpu-memory",
			MemoryPercentage: "volcano.sh/vgpu-memory-percentage",
			Cores:            "volcano.sh/vgpu-cores",
			NumberPerGPU:     10,
		},
		HAMi: HAMi{
			Number:           "nvidia.com/gpu",
			Memory:           "nvidia.com/gpumem",
			MemoryPercentage: "nvidia.com/gpumem-percentage",
			Cores:            "nvidia.com/gpucores",
			Priority:         "nvidia.com/priority",
			NumberPerGPU:     10,
			DefaultNumber:    1,
			MemoryFactor:     1,
		},
		MetaGPU: MetaGPU{
			Enabled:       true,
			DeviceSharing: []DeviceSharing{defaultSharing("cnvrg.io/metagpu")},
		},
	}
}

// defaultSharing returns the entry of device_sharing that sets only a name.
func defaultSharing(name string) DeviceSharing {
	return DeviceSharing{ResourceName: name, SharesPerGPU: resharedPerGPU, UUIDs: []string{AllGPUs}}
}
