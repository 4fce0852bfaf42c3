package config

import "time"

// Default is the configuration of a node that says nothing: exactly what
// config.toml at the root of the project spells out.
func Default() Config {
	return Config{
		Node: Node{
			SlotsPerGPU:      10,
			ExemptNamespaces: []string{"nri-vgpu-system"},
		},
		Driver:    Driver{Root: "/"},
		Injection: defaultInjection(),
		Placement: Placement{Policy: PlaceBinpack},
		Compute:   Compute{Policy: ComputeCap},
		Dialects:  defaultDialects(),
		NRI: NRI{
			SocketPath:  "/var/run/nri/nri.sock",
			PluginName:  "nri-vgpu",
			PluginIndex: "90",
			PodWait:     Duration{time.Second},
		},
		Paths: Paths{InstallDir: "/opt/nri-vgpu", RunDir: "/run/nri-vgpu"},
		HTTP:  HTTP{Address: ":9394"},
		Log:   Log{Level: "info", Format: "text"},
	}
}

func defaultInjection() Injection {
	const lib = "/usr/lib/x86_64-linux-gnu/"
	return Injection{
		Method:       InjectAuto,
		CDIKind:      "nvidia.com/gpu",
		CDISpecDirs:  []string{"/etc/cdi", "/var/run/cdi"},
		CDIOutputDir: "/var/run/cdi",
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

func defaultDialects() Dialects {
	return Dialects{
		Native: Native{
			Enabled: true,
			Number:  "nri-vgpu.io/vgpu-number",
			Memory:  "nri-vgpu.io/vgpu-memory",
			Cores:   "nri-vgpu.io/vgpu-cores",
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
		MetaGPU: MetaGPU{
			Enabled:       true,
			DeviceSharing: []DeviceSharing{defaultSharing("cnvrg.io/metagpu")},
		},
	}
}

// defaultSharing is what an entry of device_sharing means that gives only
// its name.
func defaultSharing(name string) DeviceSharing {
	return DeviceSharing{ResourceName: name, SharesPerGPU: 100, UUIDs: []string{AllGPUs}}
}
