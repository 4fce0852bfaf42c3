// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/nri-vgpu/nri-vgpu/test/cluster/components"
	"github.com/nri-vgpu/nri-vgpu/test/cluster/pki"
)

// These are paths on the node.
const (
	pkiDir        = "/etc/kubernetes/pki"
	kubeDir       = "/etc/kubernetes"
	manifestDir   = "/etc/kubernetes/manifests"
	kubeletConfig = "/var/lib/kubelet-config.yaml"
)

const frontProxy = "front-proxy-client"

// A tree is a directory of files that the supervisor copies over the node's root.
type tree struct{ dir string }

func (t tree) write(path string, content []byte, mode os.FileMode) error {
	target := filepath.Join(t.dir, path)
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return fmt.Errorf("write file %s of the node: %w", path, err)
	}
	if err := os.WriteFile(target, content, mode); err != nil {
		return fmt.Errorf("write file %s of the node: %w", path, err)
	}
	return nil
}

func (t tree) copy(path, source string) error {
	content, err := os.ReadFile(source)
	if err != nil {
		return fmt.Errorf("copy file %s of the node: %w", path, err)
	}
	info, err := os.Stat(source)
	if err != nil {
		return fmt.Errorf("copy file %s of the node: %w", path, err)
	}
	return t.write(path, content, info.Mode().Perm())
}

// writeConfig writes all files that the components read.
func (t tree) writeConfig(p plan) error {
	files := []struct{ path, content string }{
		{"/etc/containerd/config.toml", containerdConfig(p.ContainerdLine, components.MayLowerOOMScore()) + p.Containerd},
		{"/etc/crio/crio.conf", crioConfig()},
		{"/etc/containers/storage.conf", imageStorage},
		{"/etc/containers/policy.json", imagePolicy},
		{"/etc/nvidia-container-runtime/config.toml", nvidiaRuntimeConfig},
		{"/etc/cni/net.d/10-bridge.conflist", cniConfig(p.link.pods.String())},
		{kubeletConfig, kubeletConfiguration(p.runtime().Ready.Socket) + p.Kubelet},
		{"/etc/hostname", p.Name + "\n"},
		{"/etc/hosts", "127.0.0.1 localhost\n" + p.link.node.Addr().String() + " " + p.Name + "\n"},
		{"/etc/resolv.conf", "# Pods resolve no names: the cluster has no DNS server.\n"},
	}
	for _, f := range files {
		if err := t.write(f.path, []byte(f.content), 0o644); err != nil {
			return err
		}
	}
	for _, dir := range []string{manifestDir, "/etc/cdi", "/etc/nri/conf.d", "/opt/nri/plugins", "/var/run/cdi"} {
		if err := os.MkdirAll(filepath.Join(t.dir, dir), 0o755); err != nil {
			return fmt.Errorf("copy directory %s of the node: %w", dir, err)
		}
	}
	copies := p.copies()
	maps.Copy(copies, p.Files)
	if p.GPU != nil {
		maps.Copy(copies, p.GPU.Files)
	}
	for path, source := range copies {
		if err := t.copy(path, source); err != nil {
			return err
		}
	}
	return nil
}

// An apiClient is a client of the API server: its certificate's file name, user and groups, and its
// kubeconfig, if any.
type apiClient struct {
	file, user, group, kubeconfig string
}

func apiClients(nodeName string) []apiClient {
	return []apiClient{
		{"admin", "kubernetes-admin", "system:masters", "admin.conf"},
		{"controller-manager", "system:kube-controller-manager", "", "controller-manager.conf"},
		{"scheduler", "system:kube-scheduler", "", "scheduler.conf"},
		{"kubelet-client", "system:node:" + nodeName, "system:nodes", "kubelet.conf"},
		{"apiserver-kubelet-client", "kube-apiserver-kubelet-client", "system:masters", ""},
	}
}

// writePKI makes all keys and certificates, and the kubeconfigs that contain them. writePKI returns
// the kubeconfig for the machine.
func (t tree) writePKI(p plan) ([]byte, error) {
	if p.Control != nil {
		return t.writeWorkerPKI(p)
	}
	ca, err := pki.NewAuthority(p.Name + "-ca")
	if err != nil {
		return nil, err
	}
	caKey, err := ca.KeyPEM()
	if err != nil {
		return nil, err
	}
	serviceAccounts, err := pki.NewKey()
	if err != nil {
		return nil, err
	}
	if err := t.write(pkiDir+"/ca.crt", ca.PEM, 0o644); err != nil {
		return nil, err
	}
	for name, key := range map[string][]byte{"ca.key": caKey, "sa.key": serviceAccounts} {
		if err := t.write(pkiDir+"/"+name, key, 0o600); err != nil {
			return nil, err
		}
	}
	if err := t.writeServers(p, ca); err != nil {
		return nil, err
	}
	if err := t.writeFrontProxy(p); err != nil {
		return nil, err
	}
	return t.writeClients(p, ca)
}

// writeWorkerPKI makes the kubelet's identities, signed by the authority of the worker's cluster,
// and returns the cluster's kubeconfig.
func (t tree) writeWorkerPKI(p plan) ([]byte, error) {
	ca, err := readAuthority(filepath.Join(p.Control.StateDir, "tree", pkiDir))
	if err != nil {
		return nil, err
	}
	if err := t.write(pkiDir+"/ca.crt", ca.PEM, 0o644); err != nil {
		return nil, err
	}
	serving, err := ca.Server("kubelet", p.Name, p.link.node.Addr().String())
	if err != nil {
		return nil, err
	}
	if err := serving.Write(filepath.Join(t.dir, pkiDir), "kubelet"); err != nil {
		return nil, err
	}
	user := "system:node:" + p.Name
	pair, err := ca.Client(user, "system:nodes")
	if err != nil {
		return nil, err
	}
	config, err := kubeconfig(p, ca.PEM, user, pair)
	if err != nil {
		return nil, err
	}
	if err := t.write(kubeDir+"/kubelet.conf", config, 0o600); err != nil {
		return nil, err
	}
	admin, err := os.ReadFile(p.Control.Kubeconfig())
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig of the cluster: %w", err)
	}
	return admin, nil
}

func readAuthority(dir string) (*pki.Authority, error) {
	cert, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		return nil, fmt.Errorf("read the authority of the cluster: %w", err)
	}
	key, err := os.ReadFile(filepath.Join(dir, "ca.key"))
	if err != nil {
		return nil, fmt.Errorf("read the authority of the cluster: %w", err)
	}
	return pki.ReadAuthority(cert, key)
}

func (t tree) writeServers(p plan, ca *pki.Authority) error {
	nodeAddress := p.link.node.Addr().String()
	servers := map[string][]string{
		"apiserver": {"kubernetes", "kubernetes.default", "kubernetes.default.svc",
			"kubernetes.default.svc.cluster.local", "localhost", p.Name, "127.0.0.1", serviceAddress, nodeAddress},
		"kubelet": {p.Name, "localhost", "127.0.0.1", nodeAddress},
	}
	for name, hosts := range servers {
		pair, err := ca.Server(name, hosts...)
		if err != nil {
			return err
		}
		if err := pair.Write(filepath.Join(t.dir, pkiDir), name); err != nil {
			return err
		}
	}
	return nil
}

// writeFrontProxy makes the identity with which the API server forwards requests to extension API
// servers. A separate authority, which signs no other certificate, signs the identity.
func (t tree) writeFrontProxy(p plan) error {
	ca, err := pki.NewAuthority(p.Name + "-front-proxy-ca")
	if err != nil {
		return err
	}
	if err := t.write(pkiDir+"/front-proxy-ca.crt", ca.PEM, 0o644); err != nil {
		return err
	}
	pair, err := ca.Client(frontProxy)
	if err != nil {
		return err
	}
	return pair.Write(filepath.Join(t.dir, pkiDir), frontProxy)
}

func (t tree) writeClients(p plan, ca *pki.Authority) ([]byte, error) {
	var admin []byte
	for _, c := range apiClients(p.Name) {
		var groups []string
		if c.group != "" {
			groups = []string{c.group}
		}
		pair, err := ca.Client(c.user, groups...)
		if err != nil {
			return nil, err
		}
		if err := pair.Write(filepath.Join(t.dir, pkiDir), c.file); err != nil {
			return nil, err
		}
		if c.kubeconfig == "" {
			continue
		}
		config, err := kubeconfig(p, ca.PEM, c.user, pair)
		if err != nil {
			return nil, err
		}
		if err := t.write(kubeDir+"/"+c.kubeconfig, config, 0o600); err != nil {
			return nil, err
		}
		if c.file == "admin" {
			admin = config
		}
	}
	return admin, nil
}

// kubeconfig contains the node's own address, which both the node and the machine reach.
func kubeconfig(p plan, ca []byte, user string, pair pki.Pair) ([]byte, error) {
	config := api.NewConfig()
	config.Clusters[p.Name] = &api.Cluster{Server: p.server(), CertificateAuthorityData: ca}
	config.AuthInfos[user] = &api.AuthInfo{ClientCertificateData: pair.Cert, ClientKeyData: pair.Key}
	config.Contexts[p.Name] = &api.Context{Cluster: p.Name, AuthInfo: user}
	config.CurrentContext = p.Name
	content, err := clientcmd.Write(*config)
	if err != nil {
		return nil, fmt.Errorf("encode the kubeconfig of %s: %w", user, err)
	}
	return content, nil
}
