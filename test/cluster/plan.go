// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"os"
	"path/filepath"
	"slices"

	"github.com/nri-vgpu/nri-vgpu/test/cluster/components"
	"github.com/nri-vgpu/nri-vgpu/test/cluster/node"
)

// These are the names of a cluster's components in commands and methods.
const (
	Etcd              = "etcd"
	Containerd        = "containerd"
	CRIO              = "crio"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
	Kubelet           = "kubelet"
)

const etcdURL = "http://127.0.0.1:2379"

// cgroupRoot holds the cgroups of all clusters.
const cgroupRoot = "nri-vgpu-clusters"

// A plan contains all decisions before the start of a node.
type plan struct {
	Options
	link link
}

func (p plan) server() string {
	if p.Control != nil {
		return "https://" + p.Control.Address
	}
	return "https://" + p.link.node.Addr().String()
}

func cgroupOf(name string) string { return cgroupRoot + "/" + name }

// clearedPaths are paths at which the node's own content hides the machine's files.
var clearedPaths = []string{
	"/etc/cdi", "/etc/cni", "/etc/containerd", "/etc/containers", "/etc/crio", "/etc/kubernetes", "/etc/ld.so.preload", "/etc/nri",
	"/etc/nvidia-container-runtime", "/etc/hostname", "/etc/hosts", "/etc/resolv.conf",
	"/opt/cni", "/opt/containerd", "/opt/nri", "/opt/nri-vgpu",
	"/var/lib/cni", "/var/lib/containerd", "/var/lib/containers", "/var/lib/crio", "/var/lib/etcd", "/var/lib/kubelet", "/var/lib/nri-vgpu",
	"/var/log/containers", "/var/log/pods",
}

// ownDirs are directories on the machine's disk, in the state directory, because containers'
// snapshots cannot be an overlay on an overlay.
var ownDirs = map[string]string{
	"containerd":      "/var/lib/containerd",
	"containers":      "/var/lib/containers",
	"etcd":            "/var/lib/etcd",
	"kubelet":         "/var/lib/kubelet",
	"logs/containers": "/var/log/containers",
	"logs/pods":       "/var/log/pods",
}

// runcPath is the path at which containerd finds runc. runcBehind is runc's path if another program
// wraps runc.
const (
	runcPath   = "/usr/local/sbin/runc"
	runcBehind = "/usr/local/libexec/runc"
)

// copies returns the programs that the node gets as copies instead of mounts, by path on the node.
// runc runs itself from an overlay of runc's directory, where a mounted file is not visible.
func (p plan) copies() map[string]string {
	shim := p.Binaries[components.ReducedRunc]
	if shim == "" {
		return map[string]string{runcPath: p.Binaries["runc"]}
	}
	return map[string]string{runcPath: shim, runcBehind: p.Binaries["runc"]}
}

// mountedAt returns the path at which a program is mounted on the node, or "" for a copied program.
func mountedAt(name string) string {
	switch name {
	case "runc", components.ReducedRunc:
		return ""
	case "bridge", "host-local", "loopback":
		return filepath.Join("/opt/cni/bin", name)
	default:
		return filepath.Join("/usr/local/bin", name)
	}
}

func (p plan) spec() node.Spec {
	s := node.Spec{
		Name:       p.Name,
		StateDir:   p.StateDir,
		Address:    p.link.node.String(),
		Clear:      clearedPaths,
		Tree:       filepath.Join(p.StateDir, "tree"),
		Cgroup:     cgroupOf(p.Name),
		Components: p.components(),
	}
	if p.Control == nil {
		s.Services = serviceAddress
	} else {
		s.Routes = p.link.routes(p.Control.Address)
	}
	for dir, target := range ownDirs {
		s.Binds = append(s.Binds, node.Bind{Source: filepath.Join(p.StateDir, dir), Target: target})
	}
	for name, source := range p.Binaries {
		if target := mountedAt(name); target != "" {
			s.Binds = append(s.Binds, node.Bind{Source: source, Target: target, ReadOnly: true})
		}
	}
	if p.GPU != nil {
		s.Setup = p.GPU.Setup
	}
	return s
}

// makeDirs makes the directories to which the node writes.
func (p plan) makeDirs() error {
	for dir := range ownDirs {
		if err := os.MkdirAll(filepath.Join(p.StateDir, dir), 0o755); err != nil {
			return err
		}
	}
	return os.Chmod(filepath.Join(p.StateDir, "etcd"), 0o700)
}

// runtime returns the container runtime.
func (p plan) runtime() node.Component {
	if p.CRIO != "" {
		return node.Component{Name: CRIO, Args: []string{"crio"}, Ready: node.Probe{Socket: crioSocket}}
	}
	return node.Component{
		Name:  Containerd,
		Args:  []string{"containerd", "--config=/etc/containerd/config.toml"},
		Ready: node.Probe{Socket: containerdSocket},
	}
}

func (p plan) components() []node.Component {
	runtime := p.runtime()
	address := p.link.node.Addr().String()
	kubelet := node.Component{
		Name: Kubelet,
		Args: []string{"kubelet", "--config=" + kubeletConfig, "--kubeconfig=" + kubeDir + "/kubelet.conf",
			"--hostname-override=" + p.Name, "--node-ip=" + address},
		After: []string{runtime.Name},
		Ready: node.Probe{URL: "http://127.0.0.1:10248/healthz"},
	}
	if p.GPU != nil {
		// The chart selects nodes with this label.
		kubelet.Args = append(kubelet.Args, "--node-labels=nri-vgpu.io/gpu=true")
	}
	if p.Control != nil {
		return []node.Component{runtime, kubelet}
	}
	kubelet.After = append(kubelet.After, APIServer)
	return append([]node.Component{runtime}, append(p.controlPlane(address), kubelet)...)
}

func (p plan) controlPlane(address string) []node.Component {
	return []node.Component{
		{
			Name: Etcd,
			Args: []string{"etcd", "--data-dir=/var/lib/etcd", "--listen-client-urls=" + etcdURL,
				"--advertise-client-urls=" + etcdURL, "--listen-peer-urls=http://127.0.0.1:2380",
				// The data is worthless after a crash of the machine.
				"--unsafe-no-fsync", "--log-level=warn"},
			Ready: node.Probe{URL: etcdURL + "/readyz"},
		},
		{
			Name:  APIServer,
			Args:  slices.Concat([]string{"kube-apiserver"}, apiServerFlags(address), p.APIServer),
			After: []string{Etcd},
			Ready: node.Probe{
				URL: "https://127.0.0.1/readyz", CA: pkiDir + "/ca.crt",
				Cert: pkiDir + "/admin.crt", Key: pkiDir + "/admin.key",
			},
		},
		{
			Name: ControllerManager,
			Args: append([]string{"kube-controller-manager"},
				append(controllerFlags("controller-manager.conf"),
					"--use-service-account-credentials=true",
					// Each controller first requests an account, which takes seconds at the
					// default rate for large clusters.
					"--kube-api-qps=200", "--kube-api-burst=400",
					// The controller removes a new node's taints at its next check.
					"--node-monitor-period=1s",
					"--service-account-private-key-file="+pkiDir+"/sa.key",
					"--root-ca-file="+pkiDir+"/ca.crt",
					"--cluster-signing-cert-file="+pkiDir+"/ca.crt",
					"--cluster-signing-key-file="+pkiDir+"/ca.key")...),
			After:   []string{APIServer},
			Ready:   node.Probe{URL: "https://127.0.0.1:10257/healthz"},
			Restart: true,
		},
		{
			Name:  Scheduler,
			Args:  append([]string{"kube-scheduler"}, controllerFlags("scheduler.conf")...),
			After: []string{APIServer},
			Ready: node.Probe{URL: "https://127.0.0.1:10259/healthz"},
			// The scheduler exits when its view of the pods is inconsistent.
			Restart: true,
		},
	}
}

func apiServerFlags(address string) []string {
	return []string{
		"--etcd-servers=" + etcdURL,
		"--bind-address=0.0.0.0", "--secure-port=443", "--advertise-address=" + address,
		"--service-cluster-ip-range=" + serviceRange,
		"--allow-privileged=true",
		// Without this option, a stopped API server waits for its watchers for a minute.
		"--shutdown-send-retry-after=true",
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--client-ca-file=" + pkiDir + "/ca.crt",
		"--tls-cert-file=" + pkiDir + "/apiserver.crt",
		"--tls-private-key-file=" + pkiDir + "/apiserver.key",
		"--kubelet-certificate-authority=" + pkiDir + "/ca.crt",
		"--kubelet-client-certificate=" + pkiDir + "/apiserver-kubelet-client.crt",
		"--kubelet-client-key=" + pkiDir + "/apiserver-kubelet-client.key",
		"--kubelet-preferred-address-types=InternalIP",
		"--requestheader-client-ca-file=" + pkiDir + "/front-proxy-ca.crt",
		"--requestheader-allowed-names=" + frontProxy,
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + pkiDir + "/" + frontProxy + ".crt",
		"--proxy-client-key-file=" + pkiDir + "/" + frontProxy + ".key",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + pkiDir + "/sa.key",
		"--service-account-signing-key-file=" + pkiDir + "/sa.key",
	}
}

// controllerFlags returns the flags that the scheduler and the controller manager share. Each
// component runs once, so no component needs leader election.
func controllerFlags(config string) []string {
	path := kubeDir + "/" + config
	return []string{
		"--kubeconfig=" + path, "--authentication-kubeconfig=" + path, "--authorization-kubeconfig=" + path,
		"--leader-elect=false", "--bind-address=127.0.0.1",
	}
}
