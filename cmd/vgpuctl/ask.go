package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/nri-vgpu/nri-vgpu/pkg/ctl"
	"github.com/nri-vgpu/nri-vgpu/pkg/layout"
	"github.com/nri-vgpu/nri-vgpu/pkg/version"
)

// mgctl is vgpuctl as MetaGPU's users know it: what it can do is to ask.
func mgctl() *cobra.Command {
	root := &cobra.Command{
		Use:           layout.Mgctl,
		Short:         "See who uses the GPUs of this container, or on the node of all",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(getCommand("gpus"), pingCommand(), bothVersionsCommand())
	return root
}

// socketFlag adds the flag that says where to ask.
func socketFlag(cmd *cobra.Command, socket *string) {
	cmd.Flags().StringVar(socket, "socket", "", "the agent's socket; that of this container, or of the node, if left out")
}

// socketOr is the agent's socket if none is given.
func socketOr(socket string) string {
	if socket == "" {
		return ctl.Socket(layout.ContainerRunDir)
	}
	return socket
}

func asking(cmd *cobra.Command, socket string) ctl.Asking {
	return ctl.Asking{Socket: socketOr(socket), Out: cmd.OutOrStdout()}
}

// getCommand lists what MetaGPU's users know. aliases are more names for devices.
func getCommand(aliases ...string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get",
		Short: "Show GPUs, and the processes that use them",
		Long: `Show GPUs, and the processes that use them, as the node's agent tells.

In a container these are its own and its pod's. On the node, as root, and in the
agent's pod they are all:

  kubectl -n nri-vgpu-system exec POD-OF-THE-NODE -- vgpuctl get processes -o wide

What is shown is what the driver measured; a process cannot change it.
The exit status is 0 after an answer, 3 where no agent answers, else 1.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return errors.New("say what to show; --help has what there is")
		},
	}
	cmd.AddCommand(
		listCommand("processes", "Show the processes that use the GPUs: their part of the time, their memory, what their container may use",
			ctl.Asking.Processes, "process", "ps"),
		listCommand("devices", "Show the GPUs: memory used and in all, shares", ctl.Asking.Devices, append(aliases, "device")...))
	return cmd
}

func listCommand(name, short string, list func(ctl.Asking, context.Context) error, aliases ...string) *cobra.Command {
	var output, socket string
	var watch bool
	cmd := &cobra.Command{
		Use:     name,
		Aliases: aliases,
		Short:   short,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			a := asking(cmd, socket)
			a.Format, a.Watch = output, watch
			return list(a, ctx)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", ctl.FormatTable, strings.Join(ctl.Formats, ", ")+" (raw: fields parted by tabs, full amounts, no headings)")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "again every second: in place on a terminal, else line after line")
	socketFlag(cmd, &socket)
	return cmd
}

func pingCommand() *cobra.Command {
	var socket string
	cmd := &cobra.Command{
		Use:   "ping",
		Short: "See whether the node's agent answers",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return asking(cmd, socket).Ping(context.Background()) },
	}
	socketFlag(cmd, &socket)
	return cmd
}

func bothVersionsCommand() *cobra.Command {
	var socket string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program and of the agent",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			fmt.Fprintln(cmd.OutOrStdout(), version.Version)
			pong, err := asking(cmd, socket).Agent(context.Background())
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "agent %s on %s\n", pong.Version, pong.Node)
			return nil
		},
	}
	socketFlag(cmd, &socket)
	return cmd
}
