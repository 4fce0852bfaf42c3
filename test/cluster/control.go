// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nri-vgpu/nri-vgpu/test/cluster/node"
)

// logTail is the number of lines of a component's log that an error shows.
const logTail = 20

// Components returns the components and their states.
func (c *Cluster) Components(ctx context.Context) ([]node.Status, error) {
	return c.control.Components(ctx)
}

// Pid returns the pid of a component's process on the machine.
func (c *Cluster) Pid(ctx context.Context, component string) (int, error) {
	s, err := c.status(ctx, component)
	if err != nil {
		return 0, err
	}
	if s.Pid == 0 {
		return 0, fmt.Errorf("%s does not run (%s)", component, s.Detail)
	}
	return hostPid(c.record.Pid, s.Pid)
}

// Restart ends a component, starts it again and waits until it serves.
func (c *Cluster) Restart(ctx context.Context, component string) error {
	if err := c.control.Restart(ctx, component); err != nil {
		return fmt.Errorf("restart %s: %w", component, err)
	}
	return c.waitComponent(ctx, component)
}

// Stop ends a component. The component stays stopped until Start.
func (c *Cluster) Stop(ctx context.Context, component string) error {
	if err := c.control.Stop(ctx, component); err != nil {
		return fmt.Errorf("stop %s: %w", component, err)
	}
	return nil
}

// Start starts a component that does not run and waits until it serves.
func (c *Cluster) Start(ctx context.Context, component string) error {
	if err := c.control.Start(ctx, component); err != nil {
		return fmt.Errorf("start %s: %w", component, err)
	}
	return c.waitComponent(ctx, component)
}

// Kill sends a signal only to a component's process. A component that ends stays stopped until
// Start.
func (c *Cluster) Kill(ctx context.Context, component string, sig syscall.Signal) error {
	if err := c.control.Signal(ctx, component, sig); err != nil {
		return fmt.Errorf("signal %s: %w", component, err)
	}
	return nil
}

func (c *Cluster) waitComponent(ctx context.Context, component string) error {
	err := c.await(ctx, component+" to serve", func(ctx context.Context) error {
		s, err := c.status(ctx, component)
		if err != nil {
			return err
		}
		if s.State != node.Ready {
			return fmt.Errorf("%s is %s: %s", component, s.State, s.Detail)
		}
		return nil
	})
	if err != nil {
		return c.withLog(component, err)
	}
	return nil
}

func (c *Cluster) status(ctx context.Context, component string) (node.Status, error) {
	all, err := c.control.Components(ctx)
	if err != nil {
		return node.Status{}, err
	}
	names := make([]string, 0, len(all))
	for _, s := range all {
		if s.Name == component {
			return s, nil
		}
		names = append(names, s.Name)
	}
	return node.Status{}, fmt.Errorf("no component is called %q; there are %s", component, strings.Join(names, ", "))
}

// LogFile returns the path of a component's log. "supervisor" and "setup" also have logs.
func (c *Cluster) LogFile(component string) string { return node.LogFile(c.StateDir, component) }

// Logs returns all that a component has printed.
func (c *Cluster) Logs(component string) (string, error) {
	content, err := os.ReadFile(c.LogFile(component))
	if err != nil {
		return "", fmt.Errorf("read the log of %s: %w", component, err)
	}
	return string(content), nil
}

// withLog adds the end of a component's log to an error.
func (c *Cluster) withLog(component string, err error) error {
	content, logErr := c.Logs(component)
	if logErr != nil {
		return errors.Join(err, logErr)
	}
	return fmt.Errorf("%w\nthe end of %s:\n%s", err, c.LogFile(component), tail(content, logTail))
}

// tail returns the last lines of a text, indented.
func tail(text string, count int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if len(lines) > count {
		lines = lines[len(lines)-count:]
	}
	return "  " + strings.Join(lines, "\n  ")
}

// Command returns a command that runs in the node's namespaces, with its root and its environment.
// The command stays in the caller's cgroup on the machine.
func (c *Cluster) Command(ctx context.Context, argv ...string) *exec.Cmd {
	enter := []string{"--target", strconv.Itoa(c.record.Pid),
		"--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--root", "--wd", "--"}
	cmd := exec.CommandContext(ctx, "nsenter", append(enter, argv...)...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"}
	return cmd
}

// Exec runs a command in the node and returns the command's standard output. An error contains the
// command's standard error.
func (c *Cluster) Exec(ctx context.Context, argv ...string) (string, error) {
	return c.execWith(ctx, nil, argv...)
}

func (c *Cluster) execWith(ctx context.Context, stdin io.Reader, argv ...string) (string, error) {
	cmd := c.Command(ctx, argv...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("in node %s: %s: %w: %s", c.NodeName, strings.Join(argv, " "), err,
			strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// LoadImage imports the image of an OCI archive into the node. Standard input passes the archive,
// because the node's view of the machine's files may be older than the archive.
func (c *Cluster) LoadImage(ctx context.Context, archive string) error {
	f, err := os.Open(archive)
	if err != nil {
		return fmt.Errorf("load image: %w", err)
	}
	defer f.Close()
	command := []string{"ctr", "--namespace=k8s.io", "images", "import", "-"}
	if c.Runtime() == CRIO {
		if command, err = crioImport(archive); err != nil {
			return fmt.Errorf("load image: %w", err)
		}
	}
	if _, err := c.execWith(ctx, f, command...); err != nil {
		return fmt.Errorf("load image %s: %w", archive, err)
	}
	return nil
}

// A progress prints the steps and the time since the start.
type progress struct {
	out   io.Writer
	start time.Time
}

func newProgress(out io.Writer) *progress { return &progress{out: out, start: time.Now()} }

func (p *progress) say(format string, args ...any) {
	fmt.Fprintf(p.out, "%6.1fs  %s\n", time.Since(p.start).Seconds(), fmt.Sprintf(format, args...))
}
