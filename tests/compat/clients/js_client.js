'use strict';

// The Node.js client `ali-ons`: one process, one JSON object per line out. Arguments and lines are those of
// cpp_client.py, so that one test can run both.

const { Consumer, Message, Producer } = require('ali-ons');
const { parseArgs } = require('util');

const silent = { info() {}, warn() {}, error() {}, debug() {} };
// Only asked for addresses when there is no nameSrv.
const httpclient = { request: async () => { throw new Error('no HTTP here'); } };

function say(fields) {
  process.stdout.write(JSON.stringify(fields) + '\n');
}

function common(args) {
  return {
    nameSrv: args.servers.split(';'),
    httpclient,
    accessKeyId: args['access-key'],
    accessKeySecret: args['secret-key'],
    logger: silent,
  };
}

function build(topic, number, prefix) {
  const head = Buffer.from(`${prefix}-${number} `);
  const bytes = Buffer.from(Array.from({ length: 255 }, (_, at) => at + 1));
  const message = new Message(topic, number % 2 === 0 ? 'even' : 'odd', Buffer.concat([head, bytes]));
  message.keys = [`${prefix}-${number}`];
  message.properties.shade = `blue ${number}`;
  return message;
}

async function send(producer, message, key) {
  const started = Date.now() / 1000;
  let end;
  try {
    const result = await producer.send(message);
    end = {
      msg_id: result.msgId,
      queue_id: result.messageQueue.queueId,
      queue_offset: Number(result.queueOffset),
      status: result.sendStatus,
    };
  } catch (error) {
    end = { error: `${error.name}: ${error.message}` };
  }
  say({ event: 'send', key, started, ended: Date.now() / 1000, ...end });
}

const pause = ms => new Promise(resolve => setTimeout(resolve, ms));

function inputEnd() {
  return new Promise(resolve => process.stdin.on('end', resolve).resume());
}

async function produce(args) {
  const producer = new Producer({ ...common(args), producerGroup: args.group });
  producer.on('error', error => say({ event: 'error', error: error.message }));
  await producer.ready();
  say({ event: 'ready' });
  let ended = false;
  inputEnd().then(() => { ended = true; });
  if (args.threads > 1) {
    await sendAtOnce(producer, args);
    say({ event: 'done' });
    return;
  }
  const same = args.same ? build(args.topic, 0, args.prefix) : null;
  for (let number = 0; args.count ? number < args.count : !ended; number++) {
    await send(producer, same || build(args.topic, number, args.prefix), `${args.prefix}-${same ? 0 : number}`);
    await pause(args.paceMs);
  }
  say({ event: 'done' });
}

// `count` messages, `rate` a second, at most `threads` of them in flight.
async function sendAtOnce(producer, args) {
  const began = Date.now();
  let next = 0;
  async function one() {
    for (let number = next++; number < args.count; number = next++) {
      await pause(Math.max(0, began + number / args.rate * 1000 - Date.now()));
      await send(producer, build(args.topic, number, args.prefix), `${args.prefix}-${number}`);
    }
  }
  await Promise.all(Array.from({ length: args.threads }, one));
}

async function consume(args) {
  const consumer = new Consumer({
    ...common(args),
    consumerGroup: args.group,
    consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
  });
  consumer.on('error', error => say({ event: 'error', error: error.message }));
  consumer.subscribe(args.topic, '*', async message => {
    say({
      event: 'message',
      at: Date.now() / 1000,
      key: message.keys,
      tag: message.tags,
      shade: message.properties.shade,
      body: message.body.toString('base64'),
      msg_id: message.msgId,
      queue_id: message.queueId,
      queue_offset: Number(message.queueOffset),
    });
  });
  await consumer.ready();
  say({ event: 'ready' });
  await inputEnd();
  await consumer.close();
  say({ event: 'done' });
}

async function main() {
  const { positionals, values } = parseArgs({
    allowPositionals: true,
    options: {
      group: { type: 'string' },
      count: { type: 'string', default: '0' },
      same: { type: 'boolean', default: false },
      'pace-ms': { type: 'string', default: '0' },
      threads: { type: 'string', default: '1' },
      rate: { type: 'string', default: '1' },
      prefix: { type: 'string', default: 'js' },
      'access-key': { type: 'string', default: 'none' },
      'secret-key': { type: 'string', default: 'none' },
    },
  });
  const [what, servers, topic] = positionals;
  const [count, paceMs, threads, rate] = ['count', 'pace-ms', 'threads', 'rate'].map(name => Number(values[name]));
  const args = { servers, topic, ...values, count, paceMs, threads, rate };
  await (what === 'produce' ? produce : consume)(args);
}

// Its timers would keep the process alive for ever.
main().then(() => process.exit(0), error => {
  say({ event: 'error', error: error.stack });
  process.exit(1);
});
