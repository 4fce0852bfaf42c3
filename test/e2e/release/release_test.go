// SPDX-License-Identifier: Apache-2.0

// Package release installs a release from a registry on a local cluster, by the commands of
// docs/how-to/release.md. "make e2e-release" makes the release and runs the test.
package release

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nri-vgpu/nri-vgpu/test/cluster/components"
	"github.com/nri-vgpu/nri-vgpu/test/cluster/pki"
	"github.com/nri-vgpu/nri-vgpu/test/documented"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

const (
	gpuMemory = 16 << 30
	patience  = 2 * time.Minute
	page      = "docs/how-to/release.md"

	// authorities is the directory on the node in which containerd finds the authorities of registries.
	authorities = "/etc/containerd/certs.d"
)

var (
	dir     = flag.String("release.dir", "", "directory that make release wrote")
	version = flag.String("release.version", "", "version of the release")
)

// bed is the cluster, without nri-vgpu.
var bed *testbed.Bed

func TestMain(m *testing.M) { testbed.Main(m, "release", &bed, up) }

func up(ctx context.Context) error {
	if *dir == "" || *version == "" {
		return errors.New("find the release: the flags -release.dir and -release.version are missing: run make e2e-release VERSION=0.1.0")
	}
	source, err := testbed.SourceRoot()
	if err != nil {
		return err
	}
	bed, err = testbed.Up(ctx, testbed.Options{
		Name: "release", Source: source, GPUs: 1, GPUMemory: gpuMemory,
		Containerd: "[plugins.'io.containerd.cri.v1.images'.registry]\n  config_path = '" + authorities + "'\n",
		Install:    func(context.Context, *testbed.Bed) error { return nil },
		Log:        func(format string, args ...any) { fmt.Printf("release: "+format+"\n", args...) },
	})
	return err
}

// TestInstallFromARegistry pushes the images and the chart of the release's bundle to a registry, and
// installs the chart. The node's runtime pulls the image. The installation limits a pod. The test
// then uninstalls the chart.
func TestInstallFromARegistry(t *testing.T) {
	u := newUser(t)
	bundle := filepath.Join(u.home, "nri-vgpu-"+*version+"-bundle")
	u.copy(filepath.Base(bundle) + ".tar.gz")
	install := documented.Commands(t, page, "Install without access to the internet")
	if len(install) != 2 {
		t.Fatalf("%s has %d blocks of commands, want the push and the installation", page, len(install))
	}
	u.run(install[0])
	digest := u.checkImage(filepath.Join(bundle, "nri-vgpu"), "nri-vgpu")
	u.checkImage(filepath.Join(bundle, "nri-vgpu-scheduler"), "nri-vgpu-scheduler")

	u.run("kubectl label --overwrite node " + bed.Cluster.NodeName + " nri-vgpu.io/gpu=true")
	u.run(install[1])
	must(t, bed.WaitAdvertised(t.Context()))
	checkPulled(t, u.registry.address+"/nri-vgpu@"+digest)
	checkLimit(t)
	u.run("tar -xzf " + bundle + "/kubectl-vgpu_linux_amd64.tar.gz")
	u.run("test -s share/man/man1/kubectl-vgpu-get-gpus.1")
	if gpus := u.run("kubectl vgpu get gpus"); !strings.Contains(gpus, bed.Cluster.NodeName) {
		t.Errorf("the release's plugin of kubectl does not list the node's GPU:\n%s", gpus)
	}

	for _, block := range documented.Commands(t, "docs/how-to/uninstall.md", "With Helm") {
		u.run(block)
	}
	must(t, bed.WaitNode(t.Context(), patience, func(node *corev1.Node) bool {
		_, offered := node.Status.Capacity[testbed.Memory]
		return !offered
	}))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// user is a user of the release, in a directory with crane, helm and kubectl.
type user struct {
	*testing.T
	registry server
	home     string
	env      []string
}

func newUser(t *testing.T) user {
	t.Helper()
	source, err := testbed.SourceRoot()
	must(t, err)
	builder := components.Builder{Root: source, Out: os.Stdout}
	programs, err := builder.Build(t.Context(), []components.Module{components.Helm(), components.Crane()})
	must(t, err)
	u := user{T: t, registry: serve(t), home: t.TempDir()}
	path := []string{u.home, filepath.Dir(programs["crane"]), filepath.Dir(programs["helm"]), filepath.Dir(bed.Kubectl()), os.Getenv("PATH")}
	u.env = append(os.Environ(), "HOME="+u.home, "PATH="+strings.Join(path, ":"), "KUBECONFIG="+bed.Cluster.Kubeconfig(),
		"SSL_CERT_FILE="+u.registry.authority, "NO_PROXY=*", "no_proxy=*")
	return u
}

// copy copies a file of the release.
func (u user) copy(name string) {
	u.Helper()
	content, err := os.ReadFile(filepath.Join(*dir, name))
	must(u.T, err)
	must(u.T, os.WriteFile(filepath.Join(u.home, name), content, 0o600))
}

// run runs documented commands with the test's registry and version, and returns the output.
func (u user) run(commands string) string {
	u.Helper()
	commands = strings.NewReplacer("registry.example", u.registry.address, "0.1.0", *version).Replace(commands)
	fmt.Printf("release: %s\n", strings.TrimSpace(commands))
	cmd := exec.CommandContext(u.Context(), "sh", "-e", "-c", commands)
	cmd.Dir, cmd.Env = u.home, u.env
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		u.Fatalf("%s: %v\n%s%s", commands, err, out, &errs)
	}
	return string(out)
}

// server is a registry that the machine and the node reach over TLS. authority is the path of the
// certificate of its authority.
type server struct{ address, authority string }

// serve starts a registry, whose authority containerd trusts.
func serve(t *testing.T) server {
	t.Helper()
	// The machine's end of the link to the node is the source of packets to the node.
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "udp", net.JoinHostPort(bed.Cluster.Address, "1"))
	must(t, err)
	host, _, err := net.SplitHostPort(conn.LocalAddr().String())
	must(t, err)
	must(t, conn.Close())

	authority, err := pki.NewAuthority("registry")
	must(t, err)
	pair, err := authority.Server("registry", host)
	must(t, err)
	certificate, err := tls.X509KeyPair(pair.Cert, pair.Key)
	must(t, err)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", net.JoinHostPort(host, "0"))
	must(t, err)
	running := &httptest.Server{
		Listener: listener,
		TLS:      &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12},
		Config: &http.Server{
			Handler:           registry.New(registry.Logger(log.New(io.Discard, "", 0))),
			ReadHeaderTimeout: patience,
		},
	}
	running.StartTLS()
	t.Cleanup(running.Close)

	s := server{address: listener.Addr().String()}
	node := filepath.Join(bed.Cluster.Root(), authorities, s.address)
	s.authority = filepath.Join(node, "ca.crt")
	must(t, os.MkdirAll(node, 0o755))
	must(t, os.WriteFile(s.authority, authority.PEM, 0o644))
	hosts := fmt.Sprintf("server = %q\nca = %q\n", "https://"+s.address, filepath.Join(authorities, s.address, "ca.crt"))
	must(t, os.WriteFile(filepath.Join(node, "hosts.toml"), []byte(hosts), 0o644))
	return s
}

// checkImage checks that the registry has all parts of an image for both architectures. checkImage
// returns the image's digest, which equals the digest in the release's archive.
func (u user) checkImage(archive, repository string) string {
	u.Helper()
	packed, err := layout.ImageIndexFromPath(archive)
	must(u.T, err)
	manifest, err := packed.IndexManifest()
	must(u.T, err)
	want := manifest.Manifests[0].Digest.String()
	reference := "registry.example/" + repository + ":0.1.0"
	u.run("crane validate --remote " + reference)
	if digest := strings.TrimSpace(u.run("crane digest " + reference)); digest != want {
		u.Errorf("the registry has digest %s of %s, want %s", digest, repository, want)
	}
	pushed, err := v1.ParseIndexManifest(strings.NewReader(u.run("crane manifest " + reference)))
	must(u.T, err)
	var platforms []string
	for _, m := range pushed.Manifests {
		platforms = append(platforms, m.Platform.String())
	}
	if want := []string{"linux/amd64", "linux/arm64"}; !slices.Equal(platforms, want) {
		u.Errorf("%s has the platforms %v, want %v", repository, platforms, want)
	}
	return want
}

// checkPulled checks that every container of agent and patcher runs an image that the runtime pulled
// from the registry.
func checkPulled(t *testing.T, want string) {
	t.Helper()
	pods, err := bed.Client.CoreV1().Pods(testbed.Namespace).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	if len(pods.Items) != 2 {
		t.Errorf("%d pods run, want agent and patcher", len(pods.Items))
	}
	for i := range pods.Items {
		for _, status := range pods.Items[i].Status.ContainerStatuses {
			if status.ImageID != want {
				t.Errorf("%s runs %s, want %s", pods.Items[i].Name, status.ImageID, want)
			}
		}
	}
}

// checkLimit checks that a pod sees only its part of the GPU's memory.
func checkLimit(t *testing.T) {
	t.Helper()
	_, err := bed.Create(t.Context(), testbed.Pod("limited", testbed.Container("main", testbed.Limits{testbed.Memory: 1024}, "fill")))
	must(t, err)
	_, err = bed.WaitSucceeded(t.Context(), "limited", patience)
	must(t, err)
	var fill testbed.Fill
	must(t, bed.WaitResult(t.Context(), "limited", "main", patience, &fill))
	if fill.TotalBytes != 1<<30 {
		t.Errorf("the pod saw %d bytes of memory, want 1 GiB", fill.TotalBytes)
	}
	must(t, bed.Delete(t.Context(), "limited"))
}
