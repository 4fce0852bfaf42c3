// SPDX-License-Identifier: Apache-2.0

package nodestatus_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nri-vgpu/nri-vgpu/test/cluster/components"
	"github.com/nri-vgpu/nri-vgpu/test/cluster/pki"
)

// startTimeout bounds the start. startTimeout is long, because a busy machine of two cores may
// build programs meanwhile.
const startTimeout = 2 * time.Minute

// controlPlane is an etcd and a kube-apiserver on separate ports.
type controlPlane struct {
	dir       string
	binaries  components.Binaries
	apiPort   int
	etcdURL   string
	etcd, api *exec.Cmd
	// gates are the API server's feature gates.
	gates string
	// admin has all rights.
	admin *rest.Config
}

// startControlPlane starts etcd and the API server, and waits until the API server is ready.
func startControlPlane(ctx context.Context, dir string) (*controlPlane, error) {
	binaries, err := build(ctx)
	if err != nil {
		return nil, err
	}
	c := &controlPlane{dir: dir, binaries: binaries}
	ports, err := freePorts(3)
	if err != nil {
		return nil, err
	}
	c.apiPort, c.etcdURL = ports[0], fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	if err := c.credentials(); err != nil {
		return nil, err
	}
	c.etcd, err = c.start("etcd", "--data-dir="+filepath.Join(dir, "etcd-data"),
		"--listen-client-urls="+c.etcdURL, "--advertise-client-urls="+c.etcdURL,
		fmt.Sprintf("--listen-peer-urls=http://127.0.0.1:%d", ports[2]),
		"--unsafe-no-fsync", "--log-level=warn")
	if err != nil {
		return nil, err
	}
	return c, c.startAPI(ctx)
}

// build returns etcd and kube-apiserver from the cache, and builds missing programs.
func build(ctx context.Context) (components.Binaries, error) {
	here, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	root, err := components.FindRoot(here)
	if err != nil {
		return nil, err
	}
	var wanted []components.Module
	for _, m := range components.Modules() {
		if m.Name == "kubernetes" || m.Name == "etcd" {
			wanted = append(wanted, m)
		}
	}
	return (&components.Builder{Root: root, Out: os.Stderr}).Build(ctx, wanted)
}

// credentials makes the certificates and the administrator's configuration.
func (c *controlPlane) credentials() error {
	authority, err := pki.NewAuthority("test")
	if err != nil {
		return err
	}
	server, err := authority.Server("kube-apiserver", "127.0.0.1", "localhost")
	if err != nil {
		return err
	}
	admin, err := authority.Client("admin", "system:masters")
	if err != nil {
		return err
	}
	accounts, err := pki.NewKey()
	if err != nil {
		return err
	}
	if err := server.Write(c.dir, "server"); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(c.dir, "accounts.key"), accounts, 0o600); err != nil {
		return err
	}
	c.admin = &rest.Config{
		Host: fmt.Sprintf("https://127.0.0.1:%d", c.apiPort),
		TLSClientConfig: rest.TLSClientConfig{
			CAData: authority.PEM, CertData: admin.Cert, KeyData: admin.Key,
		},
	}
	return os.WriteFile(filepath.Join(c.dir, "ca.crt"), authority.PEM, 0o644)
}

func (c *controlPlane) startAPI(ctx context.Context) error {
	file := func(name string) string { return filepath.Join(c.dir, name) }
	var err error
	c.api, err = c.start("kube-apiserver",
		"--etcd-servers="+c.etcdURL,
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", c.apiPort),
		"--tls-cert-file="+file("server.crt"), "--tls-private-key-file="+file("server.key"),
		"--client-ca-file="+file("ca.crt"),
		"--service-account-issuer=https://test", "--service-account-key-file="+file("accounts.key"),
		"--service-account-signing-key-file="+file("accounts.key"),
		"--service-cluster-ip-range=10.96.0.0/24", "--authorization-mode=RBAC",
		"--allow-privileged=true", "--enable-admission-plugins=ExtendedResourceToleration", "--feature-gates="+c.gates)
	if err != nil {
		return err
	}
	return c.waitReady(ctx)
}

// start runs a component, which the kernel kills when this process ends.
func (c *controlPlane) start(name string, args ...string) (*exec.Cmd, error) {
	log, err := os.OpenFile(c.logFile(name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(c.binaries[name], args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return cmd, nil
}

func (c *controlPlane) logFile(name string) string { return filepath.Join(c.dir, name+".log") }

func (c *controlPlane) waitReady(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(c.admin)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		status := 0
		client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).StatusCode(&status)
		if status == http.StatusOK {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the API server is not ready after %s; its log ends:\n%s", startTimeout, tail(c.logFile("kube-apiserver")))
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// restartAPI kills the API server and starts the API server again.
func (c *controlPlane) restartAPI(ctx context.Context) error {
	if err := kill(c.api); err != nil {
		return err
	}
	return c.startAPI(ctx)
}

func (c *controlPlane) stop() error {
	return errors.Join(kill(c.api), kill(c.etcd))
}

func kill(cmd *exec.Cmd) error {
	if cmd == nil {
		return nil
	}
	if err := cmd.Process.Kill(); err != nil {
		return err
	}
	_ = cmd.Wait() // the process was killed, for which Wait returns an error
	return nil
}

func tail(file string) []byte {
	content, err := os.ReadFile(file)
	if err != nil {
		return []byte(err.Error())
	}
	lines := bytes.Split(content, []byte("\n"))
	return bytes.Join(lines[max(0, len(lines)-30):], []byte("\n"))
}

// freePorts returns ports of loopback on which no process listens.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
