// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"strconv"
	"strings"
)

// SandboxImage is the image of the process that holds the namespaces of a pod.
const SandboxImage = "localhost/nri-vgpu/pause:test"

// containerdConfig makes NVIDIA's runtime the default, as on a GPU node. An image that requests all
// GPUs by its environment gets all GPUs. An empty line means the newest containerd.
func containerdConfig(line string, mayLowerOOMScore bool) string {
	version, images, runtime := 4, "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime"
	sandbox := fmt.Sprintf("[plugins.'%s'.pinned_images]\n  sandbox = '%s'\n", images, SandboxImage)
	more, cni := "", "bin_dirs = ['/opt/cni/bin']"
	switch line {
	case "1.7":
		version, runtime = 2, "io.containerd.grpc.v1.cri"
		sandbox, more = "", fmt.Sprintf("  sandbox_image = '%s'\n  enable_cdi = true\n", SandboxImage)
		cni = "bin_dir = '/opt/cni/bin'"
	case "2.0":
		version, cni = 3, "bin_dir = '/opt/cni/bin'"
	case "2.2":
		version = 3
	}
	return strings.NewReplacer("VERSION", strconv.Itoa(version), "RUNTIME", runtime, "SANDBOX", sandbox, "MORE", more, "CNI", cni,
		"RESTRICT", strconv.FormatBool(!mayLowerOOMScore)).Replace(`version = VERSION
root = '/var/lib/containerd'
state = '/run/containerd'

SANDBOX
[plugins.'RUNTIME']
  restrict_oom_score_adj = RESTRICT
  cdi_spec_dirs = ['/etc/cdi', '/var/run/cdi']
MORE
[plugins.'RUNTIME'.containerd]
  default_runtime_name = 'nvidia'

[plugins.'RUNTIME'.containerd.runtimes.nvidia]
  runtime_type = 'io.containerd.runc.v2'
  [plugins.'RUNTIME'.containerd.runtimes.nvidia.options]
    BinaryName = '/usr/local/bin/nvidia-container-runtime'

[plugins.'RUNTIME'.containerd.runtimes.runc]
  runtime_type = 'io.containerd.runc.v2'
  [plugins.'RUNTIME'.containerd.runtimes.runc.options]
    BinaryName = '/usr/local/sbin/runc'

[plugins.'RUNTIME'.cni]
  CNI
  conf_dir = '/etc/cni/net.d'

[plugins.'io.containerd.nri.v1.nri']
  disable = false
`)
}

// nvidiaRuntimeConfig makes NVIDIA's runtime inject devices by CDI, which needs no driver tools.
const nvidiaRuntimeConfig = `accept-nvidia-visible-devices-envvar-when-unprivileged = true

[nvidia-container-runtime]
log-level = "info"
mode = "cdi"
runtimes = ["/usr/local/sbin/runc"]

[nvidia-container-runtime.modes.cdi]
default-kind = "nvidia.com/gpu"
spec-dirs = ["/etc/cdi", "/var/run/cdi"]
`

// cniConfig connects pods by a bridge. The pods can reach the node and the API server. The bridge
// translates no addresses, so the node needs neither iptables nor nftables.
func cniConfig(pods string) string {
	return `{
  "cniVersion": "1.0.0",
  "name": "pods",
  "plugins": [
    {
      "type": "bridge",
      "bridge": "cni0",
      "isGateway": true,
      "hairpinMode": true,
      "ipam": {
        "type": "host-local",
        "ranges": [[{"subnet": "` + pods + `"}]],
        "routes": [{"dst": "0.0.0.0/0"}]
      }
    }
  ]
}
`
}

// kubeletConfiguration changes only those defaults of the kubelet that do not suit an ordinary
// machine. The machine's disk may be nearly full, the machine may swap, and its cgroups may be of
// version 1.
func kubeletConfiguration(runtimeSocket string) string {
	return `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: ` + pkiDir + `/ca.crt}
authorization: {mode: Webhook}
tlsCertFile: ` + pkiDir + `/kubelet.crt
tlsPrivateKeyFile: ` + pkiDir + `/kubelet.key
containerRuntimeEndpoint: unix://` + runtimeSocket + `
staticPodPath: ` + manifestDir + `
clusterDomain: cluster.local
clusterDNS: [` + dnsAddress + `]
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
evictionHard:
  memory.available: 50Mi
  nodefs.available: "1%"
  imagefs.available: "1%"
  nodefs.inodesFree: "1%"
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
`
}
